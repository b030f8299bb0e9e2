"""The parts of the worker, tested separately."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper.common.redaction import Redactor
from sweeper.errors import StoreError
from sweeper.store.documents import encode, read_json
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event
from sweeper.testing import FakeClock, Fault, Faults, FaultyStore
from sweeper.worker.checkpoint_resume import has_final_checkpoint, seed
from sweeper.worker.claim import claim
from sweeper.worker.job import with_backend_variables
from sweeper.worker.outcome import Ending, MemoryKills, judge
from sweeper.worker.output import Output
from sweeper.worker.rate_limits import VOUCHED_SECONDS, Pauses, is_quota_error


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


@pytest.fixture
def folder(store: LocalStore) -> SweepFolder:
    return SweepFolder(store, "s")


def _attempt(store: LocalStore, number: int, **files: str) -> Path:
    folder = Path(store.root, SweepFolder(store, "s").log_path("r", number))
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def test_the_nearest_earlier_attempt_is_copied(store: LocalStore, folder: SweepFolder) -> None:
    _attempt(store, 1, checkpoints_jsonl='{"name": "old"}\n')
    answered = '{"item": "a", "score": 1}\n'
    files = {"checkpoints_jsonl": '{"name": "new"}\n{"na', "items_jsonl": answered + '{"it'}
    _attempt(store, 2, **files, config_json="{}")
    _attempt(store, 3)  # ended before it was seeded
    target = _attempt(store, 5)  # attempt 4 made no folder
    assert seed(folder, "r", 5, "auto") == 2
    assert (target / "checkpoints.jsonl").read_text() == '{"name": "new"}\n'
    assert (target / "config.json").read_text() == "{}"
    assert (target / "items.jsonl").read_text() == answered


@pytest.mark.parametrize(("mode", "copied"), [("auto", None), ("always", 1)])
def test_an_attempt_without_a_checkpoint_is_copied_only_on_request(
    store: LocalStore, folder: SweepFolder, mode: str, copied: int | None
) -> None:
    _attempt(store, 1, metrics_jsonl='{"step": 0}\n')
    assert seed(folder, "r", 1, mode) is None  # there is no earlier attempt
    target = _attempt(store, 2)
    assert seed(folder, "r", 2, mode) == copied
    assert (target / "metrics.jsonl").exists() is (mode == "always")


@pytest.mark.parametrize(
    ("text", "final"),
    [
        (None, None),
        ("", False),
        ('{"name": "000010"}\n', False),
        ('{"name": "000010"}\n{"name": "x", "final": true}\n', True),
        ('{"name": "final"}\n', True),
        ('{"name": "final"}\n{"name": "000020"}\n', False),
        ('{"name": "final"}\n{"torn', True),
        ("[1, 2]\nnonsense\n", False),
    ],
)
def test_a_final_checkpoint_is_recognised(
    tmp_path: Path, text: str | None, final: bool | None
) -> None:
    if text is not None:
        (tmp_path / "checkpoints.jsonl").write_text(text)
    assert has_final_checkpoint(str(tmp_path)) is final


# Outcomes


@pytest.mark.parametrize(
    ("ending", "event", "reason"),
    [
        (Ending(0, None), Event.SUCCEEDED, None),
        (Ending(0, True), Event.SUCCEEDED, None),
        (Ending(0, False), Event.FAILED, "incomplete"),
        (Ending(3, True), Event.FAILED, "error"),
        (Ending(-9, None), Event.FAILED, "killed"),
        (Ending(-11, None, memory_kills=1), Event.FAILED, "error"),
        (Ending(-9, None, memory_kills=1), Event.FAILED, "oom"),
        (Ending(-9, None, memory_kills=1, killed_by_us=True), Event.FAILED, "killed"),
        (Ending(1, None, memory_kills=1), Event.FAILED, "error"),
        (Ending(1, None, tail=b"x\ntinker.RateLimitError: Error code: 429"), Event.FAILED, "quota"),
        (Ending(0, False, tail=b"Error code: 429"), Event.FAILED, "incomplete"),
        # Asked to stop: succeeded only if the records say so.
        (Ending(0, True, stopped=signal.SIGTERM), Event.SUCCEEDED, None),
        (Ending(0, None, stopped=signal.SIGTERM), Event.PREEMPTED, "terminated"),
        (Ending(143, None, stopped=signal.SIGTERM), Event.PREEMPTED, "terminated"),
        (Ending(None, None, stopped=signal.SIGINT), Event.CANCELLED, "interrupted"),
        (Ending(-15, None, stopped=signal.SIGTERM, cancelled=True), Event.CANCELLED, "cancelled"),
        (Ending(1, None, superseded=True, cancelled=True), Event.PREEMPTED, "superseded"),
        (Ending(0, True, timeout_s=3.0), Event.SUCCEEDED, None),
        (Ending(0, None, timeout_s=3.0), Event.FAILED, "timeout"),
        (Ending(-9, None, timeout_s=3.0, stopped=signal.SIGTERM), Event.FAILED, "timeout"),
    ],
)
def test_endings_are_judged(ending: Ending, event: Event, reason: str | None) -> None:
    outcome = judge(ending)
    assert (outcome["event"], outcome["reason"]) == (event, reason)
    if ending.code is not None and ending.code < 0:
        assert (outcome["code"], outcome["signal"]) == (None, signal.Signals(-ending.code).name)
    else:
        assert (outcome["code"], outcome["signal"]) == (ending.code, None)


def test_a_crash_at_the_end_keeps_the_reason() -> None:
    tail = b"step 1\nerror: no such model: a/b\nnanobind: leaked 2 instances!\n"
    outcome = judge(Ending(-signal.SIGABRT, None, tail=tail))
    assert outcome["reason"] == "error"
    assert outcome["detail"] == "no such model: a/b; the program crashed (SIGABRT)"


@pytest.mark.parametrize(
    ("tail", "quota"),
    [
        ("tinker.RateLimitError: Error code: 429 - {'detail': 'slow down'}", True),
        ("openai.RateLimitError: ... 'code': 'insufficient_quota'", True),
        ("The job was paused due to billing status for 3601 seconds. ... Aborting.", True),
        ("requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url", True),
        ("Error code: 429\n" + "later\n" * 30, False),
        ("step 429: loss 0.429\nValueError: bad shape (429, 3)", False),
        ("", False),
    ],
)
def test_quota_errors_are_recognised(tail: str, quota: bool) -> None:
    assert is_quota_error(tail.encode()) is quota


GROUPS = [
    ("4:memory:/user/me\n0::/\n", "memory/user/me/memory.oom_control"),
    ("4:cpu,memory:/docker/1\n", "memory/memory.oom_control"),  # as seen in a container
    ("0::/user.slice/a.scope\n", "user.slice/a.scope/memory.events"),
]


@pytest.mark.parametrize(("membership", "counter"), GROUPS)
def test_memory_kills_are_counted(tmp_path: Path, membership: str, counter: str) -> None:
    (tmp_path / "mine").write_text(membership)
    file = tmp_path / "groups" / counter
    file.parent.mkdir(parents=True)
    file.write_text("under_oom 0\noom_kill 2\n")
    kills = MemoryKills(str(tmp_path / "groups"), str(tmp_path / "mine"))
    assert kills.count() == 0
    file.write_text("under_oom 0\noom_kill 5\n")
    assert kills.count() == 3
    file.unlink()
    assert kills.count() == 0


@pytest.mark.parametrize("membership", ["", "nonsense", "0::/nowhere\n", "3:cpu:/\n"])
def test_memory_kills_are_zero_without_a_counter(tmp_path: Path, membership: str) -> None:
    (tmp_path / "mine").write_text(membership)
    assert MemoryKills(str(tmp_path), str(tmp_path / "mine")).count() == 0
    assert MemoryKills(str(tmp_path), str(tmp_path / "none")).count() == 0


# Pauses

TRAINING = b"Training for m is paused. Reason: concurrent training clients rate limit hit.\n"
CAPACITY = (
    b"WARNING:tinker: Sampling is paused for sampler s. Reason: Tinker backend is running short on "
    b"capacity, please wait\n"
)


Paused = tuple[Pauses, FakeClock, Path]


@pytest.fixture
def pauses(tmp_path: Path) -> Paused:
    clock, metrics = FakeClock(), tmp_path / "metrics.jsonl"
    return Pauses(str(tmp_path), clock=clock), clock, metrics


def _reason(pauses: Pauses) -> str | None:
    pause = pauses.current()
    return None if pause is None else pause.reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (TRAINING, "rate_limit"),
        (CAPACITY, "capacity"),
        (b"The job is paused due to billing status. Error: pay\n", "quota"),
        (b'INFO HTTP Request: POST http://x "HTTP/1.1 429 Too Many Requests"\n', "rate_limit"),
        (b"paused for breath\nstep 429\n", None),
    ],
)
def test_pauses_are_recognised_in_the_output(
    pauses: Paused, line: bytes, reason: str | None
) -> None:
    pausing, _, _ = pauses
    for byte in range(len(line)):  # in single bytes
        pausing.feed(line[byte : byte + 1])
    assert _reason(pausing) == reason


def test_a_pause_ends_when_the_metrics_grow(pauses: Paused) -> None:
    pausing, clock, metrics = pauses
    metrics.write_text("{}\n")
    pausing.feed(TRAINING)
    clock.sleep(60)
    assert (_reason(pausing), pausing.seconds()) == ("rate_limit", 60)
    pausing.feed(TRAINING)
    clock.sleep(60)
    metrics.write_text("{}\n{}\n")
    assert (_reason(pausing), pausing.seconds()) == (None, 120)
    clock.sleep(60)
    assert pausing.seconds() == 120


def test_a_pause_ends_when_it_is_not_repeated(pauses: Paused) -> None:
    pausing, clock, _ = pauses
    pausing.feed(TRAINING)
    clock.sleep(30)
    pausing.feed(CAPACITY)  # another reason: another pause, and the time continues
    assert (_reason(pausing), pausing.seconds()) == ("capacity", 30)
    clock.sleep(10 * VOUCHED_SECONDS)
    assert (_reason(pausing), pausing.seconds()) == (None, 30 + VOUCHED_SECONDS)


def test_a_pause_reported_by_the_sdk_ends_on_its_word(pauses: Paused) -> None:
    pausing, clock, _ = pauses
    pausing.hear(None)
    pausing.hear("rate_limit")
    for _ in range(100):
        clock.sleep(5)
        pausing.hear("rate_limit")
    assert (_reason(pausing), pausing.seconds()) == ("rate_limit", 500)
    pausing.hear(None)
    assert (_reason(pausing), pausing.seconds()) == (None, 500)
    pausing.feed(CAPACITY)
    pausing.hear(None)  # the SDK had not reported this pause
    assert _reason(pausing) == "capacity"


def test_the_longest_pauses_are_listed(pauses: Paused) -> None:
    pausing, clock, _ = pauses
    for seconds in range(1, 81):
        pausing.hear("rate_limit")
        clock.sleep(float(seconds))
        pausing.hear(None)
    pausing.hear("capacity")
    clock.sleep(0.5)
    listed = pausing.listed()
    assert [pause.for_s for pause in listed] == [*map(float, range(49, 81)), 0.5]
    assert [pause.reason for pause in listed] == ["rate_limit"] * 32 + ["capacity"]
    assert pausing.seconds() == 3240.5


def test_the_begin_of_a_pause_calls_back_once(tmp_path: Path) -> None:
    calls: list[int] = []
    pausing = Pauses(str(tmp_path), begun=lambda: calls.append(1))
    pausing.feed(b"step 1\n" + TRAINING + TRAINING)
    pausing.feed(CAPACITY)
    assert calls == [1]


# The log


def test_gaps_of_the_log_are_marked(tmp_path: Path) -> None:
    full = Faults(lambda number, _: Fault.FAIL if 2 <= number <= 3 else None)
    store = FaultyStore(LocalStore(str(tmp_path)), full)
    output = Output(store, "log", Redactor(()), Pauses("none"))
    source, pipe = os.pipe()
    over, ending = os.pipe()
    copying = threading.Thread(target=output.copy, args=(source, over))
    copying.start()
    for piece in (b"one\n", b"two\n", b"three\n", b"four\n"):
        os.write(pipe, piece)
        while not output.tail.endswith(piece):
            time.sleep(0.001)
    _close(pipe, ending)
    copying.join()
    _close(source, over)
    text = (tmp_path / "log").read_text()
    assert text.startswith("one\n\n[sweeper: 10 bytes are missing here: ")
    assert text.endswith("]\nfour\n")
    assert (output.lost, output.tail) == (10, b"one\ntwo\nthree\nfour\n")


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.parametrize("printed", [b"", b"the reason why\n", b"x" * 50_000])
def test_output_is_copied_though_another_process_keeps_the_pipe(
    tmp_path: Path, printed: bytes
) -> None:
    output = Output(LocalStore(str(tmp_path)), "log", Redactor(()), Pauses("none"))
    source, pipe = os.pipe()
    over, ending = os.pipe()
    os.write(pipe, b"begun\n" + printed)
    os.close(ending)
    output.copy(source, over)
    assert (tmp_path / "log").read_bytes() == b"begun\n" + printed
    _close(source, pipe, over)


# The claim


def _claimed(store: FaultyStore) -> bool:
    return claim(SweepFolder(store, "s"), "r", 1, sleep=FakeClock().sleep)


def _striking(calls: dict[str, Fault]) -> Callable[[int, str], Fault | None]:
    """Let each fault strike the first call of its kind."""

    def choose(number: int, what: str) -> Fault | None:
        del number
        return calls.pop(what.split(maxsplit=1)[0], None)

    return choose


@pytest.mark.parametrize(
    "faults",
    [
        {"store.create": Fault.LOSE_REPLY},  # written, and tried again: the nonce is ours
        {"store.create": Fault.TWICE},
        {"store.create": Fault.FAIL},
        {"store.exists": Fault.FAIL},
        {"store.create": Fault.LOSE_REPLY, "store.read": Fault.FAIL},
    ],
)
def test_a_claim_survives_a_bad_connection(
    store: LocalStore, folder: SweepFolder, faults: dict[str, Fault]
) -> None:
    assert _claimed(FaultyStore(store, Faults(_striking(faults))))
    assert not faults  # each has struck
    assert not claim(folder, "r", 1)


def test_a_failed_create_is_no_claim_if_another_was_first(
    store: LocalStore, folder: SweepFolder
) -> None:
    assert claim(folder, "r", 1)
    first = read_json(store, folder.event("r", 1, Event.CLAIMED))
    assert not _claimed(FaultyStore(store, Faults(_striking({"store.create": Fault.FAIL}))))
    assert read_json(store, folder.event("r", 1, Event.CLAIMED)) == first


def test_a_store_that_never_answers_is_an_error(store: LocalStore) -> None:
    with pytest.raises(StoreError):
        _claimed(FaultyStore(store, Faults(lambda *_: Fault.FAIL)))


def test_an_attempt_is_not_claimed_once_a_newer_was_opened(
    store: LocalStore, folder: SweepFolder
) -> None:
    store.create(folder.event("r", 2, Event.INTENT), encode({"schema": 1}))
    assert not claim(folder, "r", 1)
    assert not store.exists(folder.event("r", 1, Event.CLAIMED))


def test_a_recipe_gets_variables_of_its_job_and_not_of_the_launch() -> None:
    launch = {"A": "1", "CLUSTER_JOB": "7", "CLUSTER_NODE": "a", "GPU": "0"}
    ours = {"SWEEPER_KEEP": "CLUSTER_JOB\nGPU\nABSENT", "CLUSTER_JOB": "8", "GPU": "1", "B": "2"}
    assert with_backend_variables(launch, ours) == launch | {"CLUSTER_JOB": "8", "GPU": "1"}
    environment = with_backend_variables(launch, ours | {"SWEEPER_DROP": "CLUSTER_\n"})
    assert environment == {"A": "1", "CLUSTER_JOB": "8", "GPU": "1"}
    assert with_backend_variables(launch, {"SWEEPER_DROP": "CLUSTER_"}) == {"A": "1", "GPU": "0"}
    assert with_backend_variables(launch, {}) == launch
