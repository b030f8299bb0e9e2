"""Jobs that their backend restarts, and jobs that run elsewhere."""

from pathlib import Path
from typing import Any

import pytest

from sweeper.backends import Capabilities, backend_names, capabilities_of, registered
from sweeper.backends.base import Counter
from sweeper.errors import UsageError
from sweeper.launcher import preflight
from sweeper.recipe.snapshot import CodeCopy
from sweeper.scheduler import submitter
from sweeper.store.documents import encode, read_json
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.job import read
from sweeper.sweep.launch_settings import Launch
from sweeper.sweep.states import Event, State, fold, parse_name
from sweeper.testing import FAKE
from sweeper.worker.claim import reopen, restarts

RUN = "aaaaaaaaaaaa"
BATCH = Counter("AWS_BATCH_JOB_ATTEMPT", first=1)
ELSEWHERE = Capabilities(here=False, files=False, python="python", secrets=frozenset({"KEY"}))


@pytest.mark.parametrize(
    ("first", "value", "count"),
    [(1, "1", 0), (1, "3", 2), (1, None, 0), (1, "x", 0), (0, "2", 2), (0, None, 0)],
)
def test_restarts_are_read_from_the_environment(first: int, value: str | None, count: int) -> None:
    environ = {} if value is None else {"COUNT": value}
    assert restarts("COUNT", first, environ) == count
    assert restarts("", first, environ) == 0


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    folder = SweepFolder(LocalStore(str(tmp_path)), "s")
    job = {"run": RUN, "attempt": 1, "config": {"lr": 1}}
    folder.store.replace(folder.job(RUN, 1), encode(job))
    folder.store.replace(f"{folder.log_path(RUN, 1)}/code.diff", b"diff")
    return folder


def _happened(folder: SweepFolder, *events: tuple[int, Event]) -> None:
    for attempt, event in events:
        folder.store.create(folder.event(RUN, attempt, event), encode({}))


def _events(folder: SweepFolder) -> set[tuple[int, Event]]:
    return folder.read_events()[RUN]


def test_the_next_attempt_is_opened_with_the_job_and_code_of_the_last(folder: SweepFolder) -> None:
    before = {(1, Event.INTENT), (1, Event.SUBMITTED), (1, Event.CLAIMED)}
    _happened(folder, *before)
    for _ in range(2):  # again, as after a kill in between
        assert reopen(folder, RUN, 1, 2)
    assert _events(folder) == before | {(1, Event.PREEMPTED), (2, Event.INTENT)}
    job = read_json(folder.store, folder.job(RUN, 2))
    assert (job["attempt"], job["config"]) == (2, {"lr": 1})
    assert folder.store.read(f"{folder.log_path(RUN, 2)}/code.diff") == b"diff"
    assert fold(_events(folder)).state is State.PREEMPTED  # until it is claimed


@pytest.mark.parametrize(
    ("before", "number", "after"),
    [
        ("1.intent 1.submitted", 3, "2.intent 3.intent"),  # the second never began
        ("1.claimed 1.preempted", 2, "2.intent"),  # recorded by the worker itself
        *(
            (f"1.claimed 1.{end}", 2, None)
            for end in ("succeeded", "failed", "cancelled", "cancel")
        ),
    ],
)
def test_an_attempt_is_reopened_only_if_it_has_not_ended(
    folder: SweepFolder, before: str, number: int, after: str | None
) -> None:
    events = [parse_name(f"{name}.json") for name in before.split()]
    _happened(folder, *(event for event in events if event))
    assert reopen(folder, RUN, 1, number) is (after is not None)
    opened = [parse_name(f"{name}.json") for name in (after or "").split()]
    assert _events(folder) == {*events, *opened}


def test_an_attempt_with_a_damaged_intent_is_reopened(folder: SweepFolder) -> None:
    _happened(folder, (1, Event.CLAIMED))
    folder.store.create(folder.event(RUN, 1, Event.INTENT), b"")
    assert reopen(folder, RUN, 1, 2)
    assert (2, Event.INTENT) in _events(folder)
    assert "place" not in read_json(folder.store, folder.event(RUN, 2, Event.INTENT))


def test_an_attempt_that_the_launcher_opened_is_left_as_it_is(folder: SweepFolder) -> None:
    """Of two jobs for one attempt, one will claim it."""
    _happened(folder, (1, Event.CLAIMED), (1, Event.LOST), (2, Event.INTENT))
    folder.store.replace(folder.job(RUN, 2), encode({"its": "own"}))
    assert reopen(folder, RUN, 1, 2)
    assert read_json(folder.store, folder.job(RUN, 2)) == {"its": "own"}
    assert (1, Event.PREEMPTED) not in _events(folder)


def test_capabilities_of_backends() -> None:
    assert capabilities_of("local") == capabilities_of("tmux") == Capabilities()
    with pytest.raises(UsageError, match="no backend 'unheard-of'"):
        capabilities_of("unheard-of")
    capabilities = capabilities_of(
        "aws-batch", {"queue": "q", "image": "i", "secrets": {"KEY": "arn"}}
    )
    assert capabilities == ELSEWHERE._replace(restarts=BATCH)
    assert "aws-batch" in backend_names()


class _S3:
    """A store without a folder on this machine."""

    root = "s3://bucket/x"
    is_remote = True

    def local_path(self, path: str) -> None:
        return None


def _admit(store: Any, **more: Any) -> Capabilities:
    given: dict[str, Any] = {"service": "none", "secrets": [], "live": False} | more
    service, secrets = given.pop("service"), given.pop("secrets")
    with registered(FAKE._replace(capabilities=lambda _: ELSEWHERE)):
        return preflight.admit(Launch("fake"), store, service, secrets, **given)


def test_a_launch_is_refused_if_jobs_elsewhere_cannot_reach_something(
    folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SWEEPER_ENGINE_URL", "SWEEPER_ENGINE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert _admit(_S3(), secrets=["KEY"]) == ELSEWHERE
    with pytest.raises(UsageError, match="cannot read the folder"):
        _admit(folder.store)
    with pytest.raises(UsageError, match="--live"):
        _admit(_S3(), live=True)
    with pytest.raises(UsageError, match="say where jobs find OTHER"):
        _admit(_S3(), secrets=["KEY", "OTHER"])
    with pytest.raises(UsageError, match="SWEEPER_ENGINE_URL"):
        _admit(_S3(), service="local")
    monkeypatch.setenv("SWEEPER_ENGINE_URL", "http://10.0.0.1:8000/")
    with pytest.raises(UsageError, match="SWEEPER_ENGINE_TOKEN to its token"):
        _admit(_S3(), service="local")
    monkeypatch.setenv("SWEEPER_ENGINE_TOKEN", "tml-x")
    with pytest.raises(UsageError, match="TINKER_API_KEY"):
        _admit(_S3(), service="local")
    assert preflight.engine_url(ELSEWHERE) == "http://10.0.0.1:8000"
    assert preflight.engine_url(Capabilities()) is None


def test_a_job_elsewhere_gets_no_paths_of_this_machine() -> None:
    about = {
        "run": "a",
        "name": "a",
        "attempt": 1,
        "config": {},
        "recipe": {"kind": "module", "python": "/here/.venv/bin/python", "cwd": "/here"},
        "settings": {"env": {"A": "1"}},
        "env_file": "/here/secret.json",
        "cwd": "/here",
    }
    job = read(about, "job.json")
    sent = submitter.job_for(ELSEWHERE, job, "http://10.0.0.1:8000")
    assert sent.recipe.python == "python"
    assert sent.settings.env == {"A": "1", "TINKER_BASE_URL": "http://10.0.0.1:8000"}
    assert (sent.env_file, sent.cwd) == (None, ".")
    assert submitter.job_for(Capabilities(), job, None) == job
    capabilities = ELSEWHERE._replace(restarts=BATCH)
    argv = submitter.worker_argv(capabilities, SweepFolder(_S3(), "s"), "t-a1", "/here/secret.json")  # type: ignore[arg-type]
    assert argv[0] == "python"
    assert argv[-6:-2] == ["--restarts", BATCH.variable, "--first", "1"]
    assert argv[-2:] == ["s3://bucket/x/s", "t-a1"]
    assert "/here/secret.json" not in argv


def test_code_that_cannot_be_sent_is_refused_or_warned_of() -> None:
    warnings: list[str] = []
    without = CodeCopy(None, "not in a git checkout")
    with pytest.raises(UsageError, match=r"toy\.py: .*git init"):
        preflight.has_code(ELSEWHERE, "file", "/here/toy.py", without, warnings.append)
    preflight.has_code(ELSEWHERE, "module", None, without, warnings.append)
    assert "their image must contain it" in warnings[-1]
    code_copy = CodeCopy({"hash": "x"}, None, ("a", "b", "c", "data.bin"))  # type: ignore[arg-type]
    preflight.has_code(ELSEWHERE, "file", "/here/toy.py", code_copy, warnings.append)
    assert warnings[-1].endswith("a, b, c and 1 more")
    preflight.has_code(Capabilities(), "file", "/here/toy.py", without, warnings.append)
    assert len(warnings) == 2


@pytest.mark.parametrize("ended", [False, True])
def test_a_late_restart_does_not_disturb_the_newer_job(folder: SweepFolder, ended: bool) -> None:
    """Attempt 2 trains when the backend starts the job of attempt 1 a third time."""
    first = {(1, Event.INTENT), (1, Event.SUBMITTED), (1, Event.CLAIMED), (1, Event.PREEMPTED)}
    _happened(folder, *first, (2, Event.INTENT), (2, Event.SUBMITTED))
    folder.store.create(folder.event(RUN, 2, Event.CLAIMED), encode({"submitted": 2}))
    if ended:
        _happened(folder, (2, Event.PREEMPTED))
    before = _events(folder)
    assert reopen(folder, RUN, 1, 3) is ended
    assert (_events(folder) == before) is not ended
