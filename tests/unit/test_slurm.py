"""What Slurm's answers mean, and what its backend does with them."""

import contextlib
import errno
import json
import os
from pathlib import Path

import pytest

from sweeper.backends.base import JobSpec, JobState
from sweeper.backends.slurm import commands as slurm_commands
from sweeper.backends.slurm.accounting import Accounting
from sweeper.backends.slurm.backend import SlurmBackend
from sweeper.backends.slurm.tables import Tables
from sweeper.errors import EnvironmentFailure, Unreachable
from sweeper.testing import FakeClock

MARK = "0123456789abcdef"
TABLE = "aaaaaaaaaaaa"
TOKEN = "cccccccccccc-a1"


def _line(
    job: str, state: str, code: str = "0", restarts: int = 0, task: str = "N/A", why: str = "None",
    label: str = TOKEN, mark: str = MARK,
) -> str:  # fmt: skip
    about = f"{job}|{task}|{job}|{state}|{code}|{restarts}"
    return f"{about}|sweeper:{mark}:{TABLE}:{label}|n7|1790000000|{why}|"


@pytest.mark.parametrize(
    ("state", "code", "expected"),
    [
        ("PENDING", "0", (JobState.PENDING, None, "Resources", False)),
        ("REQUEUE_HOLD", "0", (JobState.PENDING, None, "Resources", False)),
        ("RUNNING", "0", (JobState.RUNNING, None, None, False)),
        ("COMPLETING", "0", (JobState.STOPPING, None, None, False)),
        ("SUSPENDED", "0", (JobState.RUNNING, None, None, False)),
        ("COMPLETED", "0", (JobState.ENDED, 0, None, False)),
        ("FAILED", "768", (JobState.ENDED, 3, None, False)),
        ("FAILED", "3:0", (JobState.ENDED, 3, None, False)),
        ("FAILED", "0:9", (JobState.ENDED, -9, None, False)),
        ("OUT_OF_MEMORY", "125", (JobState.ENDED, -125, "oom", False)),
        ("TIMEOUT", "15", (JobState.ENDED, -15, "timeout", False)),
        ("NODE_FAIL", "1", (JobState.ENDED, -1, "node_fail", True)),
        ("PREEMPTED", "0:15", (JobState.ENDED, -15, "preempted", True)),
        ("CANCELLED", "0", (JobState.ENDED, 0, "cancelled", False)),
        ("NEW_STATE", "?", (JobState.RUNNING, None, None, False)),
    ],
)
def test_states_of_slurm_are_translated(state: str, code: str, expected: object) -> None:
    (job,) = slurm_commands.queue_of(_line("7", state, code, why="Resources"), MARK)
    status = slurm_commands.status_of(job)
    assert status[:4] == expected
    waits = status.state is JobState.PENDING
    assert (status.node, status.since) == (
        (None, "2026-09-21T14:13:20Z") if waits else ("n7", None)
    )


def test_jobs_of_other_sweeps_are_ignored() -> None:
    lines = [
        _line("1", "RUNNING"),
        _line("2", "RUNNING", mark="f" * 16),
        f"3|N/A|3|RUNNING|0|0|a comment that quotes {MARK}|n7|1790000000|None|",
        "4|N/A|4|RUNNING|0|0|(null)|n7|1790000000|None|",
        "",
        _line("5", "PENDING", task="17", label="array", restarts=2),
    ]
    jobs = slurm_commands.queue_of("\n".join(lines), MARK)
    assert [(job.id, job.task, job.restarts, job.token) for job in jobs] == [
        ("1", 0, 0, "cccccccccccc-a1"),
        ("5_17", 17, 2, None),
    ]


def test_a_cancelled_array_lists_the_tasks_that_had_begun() -> None:
    """Slurm 22.05 shows the tasks that had begun, and one line for all others."""
    states = {"N/A": "CANCELLED", "0": "FAILED", "1": "RUNNING"}
    lines = [_line("5", state, task=task, label="array") for task, state in states.items()]
    jobs = slurm_commands.queue_of("\n".join(lines), MARK)
    assert [(job.id, job.task) for job in jobs] == [("5_0", 0), ("5_1", 1)]


def test_an_unreadable_line_of_the_queue_is_not_an_absent_job() -> None:
    (job,) = slurm_commands.queue_of(_line("7", "PENDING", why="a|b"), MARK)
    assert job.reason == "a|b"
    for line in (_line("7", "RUNNING", label="cccc"), _line("7", "RUNNING").rpartition("|None")[0]):
        with pytest.raises(Unreachable, match="cannot parse"):
            slurm_commands.queue_of(line, MARK)
    for index in ("N/A", "[3-7%2]", "1-3,...", ""):
        with pytest.raises(Unreachable, match="cannot parse this array task"):
            slurm_commands.queue_of(_line("7", "PENDING", task=index, label="array"), MARK)


class FakeSlurm(slurm_commands.Slurm):
    """A Slurm that records its calls; `answer` is what squeue prints."""

    def __init__(self, answer: str = "") -> None:
        super().__init__()
        self.answer, self.calls = answer, []
        self.refusal: str | None = None
        self.room: int | None = None
        self.configured = "AccountingStorageType   = (null)"

    def call(self, *argv: str, text: str | None = None) -> str:
        self.calls.append((*argv, text) if text else argv)
        if argv[0] == "sbatch" and self.refusal:
            raise EnvironmentFailure(self.refusal)
        if argv[0] == "sbatch" and self.room is not None:
            last = next((a for a in argv if "--array" in a), "-0").rpartition("-")[2]
            size = int(last.partition("%")[0]) + 1
            if size > self.room:
                raise slurm_commands.Full("AssocMaxSubmitJobLimit")
            self.room -= size
        if argv[0] == "scontrol":
            return f"MaxArraySize            = 4\n{self.configured}\n"
        return {"squeue": self.answer, "sbatch": "12;cluster\n"}.get(argv[0], "")

    def sent(self, name: str) -> list[tuple[str, ...]]:
        return [call for call in self.calls if call[0] == name]


def _job(token: str, **options: object) -> JobSpec:
    return JobSpec(token, "title", ["python", "/s/sweep", token], "/s/sweep", options)


def _tokens(count: int) -> list[str]:
    return [f"{number:012x}-a1" for number in range(count)]


def test_jobs_with_equal_options_are_submitted_as_arrays(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    backend = SlurmBackend(slurm, "sweep", str(tmp_path), {"qos": "low", "throttle": 2})
    jobs = [_job(token, mem="1G") for token in _tokens(9)] + [_job("d" * 12 + "-a1", mem="2G")]
    backend.submit(jobs)
    sent = slurm.sent("sbatch")
    arrays = [next((a for a in call if a.startswith("--array")), None) for call in sent]
    assert arrays == ["--array=0-3%2", "--array=0-3%2", None, None]
    assert all("--qos=low" in call and "--export=NONE" in call for call in sent)
    assert ["--mem=2G" in call for call in sent] == [False, False, False, True]
    tables = [json.loads(path.read_text()) for path in tmp_path.glob("slurm/*.json")]
    assert sorted(len(table["tasks"]) for table in tables) == [1, 1, 4, 4]


def test_only_an_unconfirmed_submission_leaves_a_table(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    backend = SlurmBackend(slurm, "sweep", str(tmp_path))
    slurm.refusal = "slurm: sbatch: Invalid account"
    with pytest.raises(EnvironmentFailure):
        backend.submit([_job(TOKEN)])
    assert list(tmp_path.glob("slurm/*")) == []

    class Lost(FakeSlurm):
        def submit(self, options: object, script: str) -> str:
            raise Unreachable("no answer")

    with pytest.raises(Unreachable):
        SlurmBackend(Lost(), "sweep", str(tmp_path)).submit([_job(TOKEN)])
    assert len(list(tmp_path.glob("slurm/*.json"))) == 1


def test_an_array_is_halved_until_it_fits(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.configured = "MaxArraySize=100\nSchedulerParameters = max_array_tasks=8,bf_interval=2"
    backend = SlurmBackend(slurm, "sweep", str(tmp_path))
    slurm.room = 5
    jobs = [_job(token) for token in _tokens(8)]
    for _ in range(3):  # Slurm is not asked again at once
        with pytest.raises(slurm_commands.Full, match="AssocMaxSubmitJobLimit"):
            backend.submit(jobs)
    arrays = [[a for a in call if "--array" in a] for call in slurm.sent("sbatch")]
    assert arrays == [["--array=0-7"], ["--array=0-3"], ["--array=0-3"], ["--array=0-1"], [], []]
    assert slurm.room == 0
    tables = [json.loads(path.read_text()) for path in tmp_path.glob("slurm/*.json")]
    assert sorted(len(table["tasks"]) for table in tables) == [1, 4]


class Choosy(FakeSlurm):
    """A Slurm that refuses jobs with the QOS `tight`."""

    refuses: type[Unreachable] = slurm_commands.Full

    def call(self, *argv: str, text: str | None = None) -> str:
        answer = super().call(*argv, text=text)
        if argv[0] == "sbatch" and "--qos=tight" in argv:
            raise self.refuses("slurm: sbatch: QOSMaxSubmitJobPerUserLimit")
        return answer


@pytest.mark.parametrize("refuses", [slurm_commands.Full, slurm_commands.Closed])
def test_jobs_refused_for_now_do_not_keep_others_out(
    tmp_path: Path, refuses: type[Unreachable]
) -> None:
    slurm = Choosy()
    slurm.refuses = refuses
    backend = SlurmBackend(slurm, "sweep", str(tmp_path))
    tight, *tokens = _tokens(4)
    for some in (tokens[:1], tokens[1:], []):
        with pytest.raises(refuses, match="QOSMaxSubmit"):
            backend.submit([_job(tight, qos="tight"), *map(_job, some)])
    tried = ["--qos=tight" in call for call in slurm.sent("sbatch")]
    assert tried == [True, False, False]  # the refused job is not tried again for a while
    assert len(list(tmp_path.glob("slurm/*.json"))) == 2


def test_an_unconfirmed_submission_is_not_repeated(tmp_path: Path) -> None:
    """Even if squeue is so slow that an earlier answer is still used."""
    first, second = _tokens(2)
    mark = Tables(str(tmp_path)).folder_hash

    clock = FakeClock()

    class Slow(FakeSlurm):
        def call(self, *argv: str, text: str | None = None) -> str:
            clock.sleep(60.0 if argv[0] == "squeue" else 0.0)
            return super().call(*argv, text=text)

        def submit(self, options: object, script: str) -> str:
            self.submit = super().submit  # type: ignore[method-assign]
            raise Unreachable("slurm: sbatch did not answer within 60 s")

    slurm = Slow()
    backend = SlurmBackend(slurm, "sweep", str(tmp_path), clock=clock)
    with pytest.raises(Unreachable, match="did not answer"):
        backend.submit([_job(first)])
    assert backend.find([first]) == {}
    slurm.answer = _line("7", "PENDING", label=first, mark=mark)
    clock.sleep(60.0)  # sbatch is tried again
    assert backend.find([first]) == {}
    backend.submit([_job(first), _job(second)])
    assert [call[2] for call in slurm.sent("sbatch")] == [f"--job-name={second}"]


def test_an_array_with_a_throttle_is_not_split(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.room = 3
    with pytest.raises(slurm_commands.Full):
        SlurmBackend(slurm, "sweep", str(tmp_path)).submit(
            [_job(token, throttle=2) for token in _tokens(4)]
        )
    assert len(slurm.sent("sbatch")) == 1 and list(tmp_path.glob("slurm/*")) == []


class Accounted(FakeSlurm):
    """Slurm with accounting, whose sacct prints `accounts`; None means that it does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.configured = "AccountingStorageType=accounting_storage/slurmdbd\n"
        self.configured += "AccountingStoreFlags = job_comment,job_script"
        self.accounts: str | None = ""

    def call(self, *argv: str, text: str | None = None) -> str:
        answer = super().call(*argv, text=text)
        if argv[0] != "sacct":
            return answer
        if self.accounts is None:
            raise Unreachable("slurm: sacct: Problem talking to the database")
        return self.accounts


def test_silent_accounting_means_unreachable(tmp_path: Path) -> None:
    slurm = Accounted()
    slurm.accounts = None
    now = 100.0
    mark = Tables(str(tmp_path)).folder_hash
    accounting = Accounting(slurm, mark, lambda: now)
    for _ in range(3):  # sacct is not asked again for some seconds
        with pytest.raises(Unreachable, match="Problem talking"):
            accounting.over({TOKEN})
    assert len(slurm.sent("sacct")) == 1
    slurm.accounts = f"7|COMPLETED|0:0|sweeper:{mark}:{TABLE}:{TOKEN}"
    now += 60
    assert [job.token for job in accounting.over({TOKEN})] == [TOKEN]


def test_accounting_is_asked_again_for_jobs_seen_in_the_queue(tmp_path: Path) -> None:
    slurm = Accounted()
    accounting = Accounting(slurm, Tables(str(tmp_path)).folder_hash, lambda: 100.0)
    first, second = TOKEN, "d" * 12 + "-a1"
    counts: list[int] = []
    for missed in ({first}, {second}, {first}, {first, second}):  # by `poll` and `find`, in turn
        accounting.over(missed)
        counts.append(len(slurm.sent("sacct")))
    accounting.note_present({second})
    accounting.over({first})
    accounting.over({second})
    assert [*counts, len(slurm.sent("sacct"))] == [1, 2, 2, 2, 3]


@pytest.mark.parametrize(
    "configured",
    [
        "AccountingStorageType = (null)",
        "AccountingStorageType = accounting_storage/none",
        "AccountingStorageType = accounting_storage/slurmdbd\nAccountingStoreFlags = (null)",
    ],
)
def test_accounting_without_comments_is_not_asked(tmp_path: Path, configured: str) -> None:
    slurm = Accounted()
    slurm.configured, slurm.accounts = configured, None
    assert SlurmBackend(slurm, "s", str(tmp_path)).poll([TOKEN])[TOKEN].state is JobState.ABSENT
    assert slurm.sent("sacct") == []


def test_cancelling_needs_no_accounting(tmp_path: Path) -> None:
    slurm = Accounted()
    slurm.accounts = None
    slurm.answer = _line("7", "RUNNING", label=TOKEN, mark=Tables(str(tmp_path)).folder_hash)
    SlurmBackend(slurm, "s", str(tmp_path)).cancel([TOKEN, "d" * 12 + "-a1"])
    assert [call[-1] for call in slurm.sent("scancel")] == ["7"]


def test_a_requeued_job_serves_the_next_attempts(tmp_path: Path) -> None:
    tables = Tables(str(tmp_path))
    run = "c" * 12
    answer = _line("7", "PENDING", restarts=2, mark=tables.folder_hash, label=f"{run}-a2")
    backend = SlurmBackend(FakeSlurm(answer), "sweep", str(tmp_path))
    states = {token: status.state for token, status in backend.poll(
        [f"{run}-a{number}" for number in range(1, 6)]).items()}  # fmt: skip
    waits, unknown = JobState.PENDING, JobState.ABSENT
    assert list(states.values()) == [unknown, waits, waits, waits, unknown]
    slurm = FakeSlurm(answer)
    SlurmBackend(slurm, "sweep", str(tmp_path)).submit([_job(f"{run}-a4"), _job(f"{run}-a5")])
    assert [call[2] for call in slurm.sent("sbatch")] == [f"--job-name={run}-a5"]


def test_an_array_without_its_table_is_unreachable(tmp_path: Path) -> None:
    answer = _line("7", "RUNNING", task="0", label="array", mark=Tables(str(tmp_path)).folder_hash)
    with pytest.raises(Unreachable, match=r"which run the job 7_0 executes.*`scancel 7`"):
        SlurmBackend(FakeSlurm(answer), "sweep", str(tmp_path)).poll([TOKEN])


@pytest.mark.parametrize(
    ("end", "is_over"),
    [
        ("exit 229", True),  # ESLURM_ALREADY_DONE: scancel prints nothing
        ("echo 'scancel: error: on job id 7: Invalid job id specified' >&2; exit 1", True),
        ("echo 'scancel: error: Access/permission denied' >&2; exit 1", False),
    ],
)
def test_cancelling_a_job_that_has_ended_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, is_over: bool
) -> None:
    answer = _line("7", "RUNNING", mark=Tables(str(tmp_path / "s")).folder_hash, label=TOKEN)
    for name, text in (("squeue", f"echo '{answer}'"), ("scancel", end)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    backend = SlurmBackend(slurm_commands.Slurm(), "sweep", str(tmp_path / "s"))
    with contextlib.nullcontext() if is_over else pytest.raises(Unreachable, match="denied"):
        backend.cancel([TOKEN])


def test_an_array_is_cancelled_by_one_call(tmp_path: Path) -> None:
    tables = Tables(str(tmp_path))
    name = tables.write([_job(token) for token in _tokens(300)], requeue=True)
    states = ["PENDING" if number % 3 else "RUNNING" for number in range(300)]
    lines = [
        _line("7", state, task=str(number), label="array", mark=tables.folder_hash).replace(
            TABLE, name
        )
        for number, state in enumerate(states)
    ]
    slurm = FakeSlurm("\n".join(lines))
    SlurmBackend(slurm, "sweep", str(tmp_path)).cancel(_tokens(300)[:12])
    waiting, running = slurm.sent("scancel")
    assert waiting == ("scancel", "--state=PENDING", "7_[1-2,4-5,7-8,10-11]")
    assert running == ("scancel", "-b", "-s", "TERM", "7_[0,3,6,9]")


_EARLY = "start: its batch script ended before the worker started"


@pytest.mark.parametrize(
    ("code", "printed", "reason"),
    [
        ("9", "{} on n0\nslurmstepd-n0: error: StepId=7.batch exceeded memory limit (2)", "oom"),
        ("9", "{} on n0\nslurmstepd: error: Exceeded job memory limit\n", "oom"),
        ("9", "{} on n0\nsomebody's error: memory limit", None),
        ("256", "{} on n0\nslurmstepd: error: Exceeded job memory limit", None),
        ("256", "{} on n0\nTraceback", None),
        (
            "768",
            "/a/job7/slurm_script: line 3: module: not found\n\n",
            f"{_EARLY}: line 3: module: not found",
        ),
        ("768", "", f"{_EARLY}: nothing printed"),
    ],
)
def test_reasons_are_read_from_the_output_of_a_job(
    tmp_path: Path, code: str, printed: str, reason: str | None
) -> None:
    slurm = FakeSlurm(
        _line("7", "FAILED", code, mark=Tables(str(tmp_path)).folder_hash, label=TOKEN)
    )
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / f"{TABLE}.out").write_text(printed.format(TOKEN))
    assert SlurmBackend(slurm, "s", str(tmp_path)).poll([TOKEN])[TOKEN].reason == reason


def test_a_suspended_job_is_not_signalled_but_reported_as_not_stopped(tmp_path: Path) -> None:
    tables = Tables(str(tmp_path))
    states = ["SUSPENDED", "STOPPED", "RUNNING", "NEW_STATE", "REQUEUE_HOLD", "COMPLETED"]
    tokens = _tokens(6)
    lines = [
        _line(str(number), state, mark=tables.folder_hash, label=token)
        for number, (state, token) in enumerate(zip(states, tokens, strict=True))
    ]
    slurm = FakeSlurm("\n".join(lines))
    assert SlurmBackend(slurm, "sweep", str(tmp_path)).cancel(tokens) == tokens[:2]
    waiting, running = slurm.sent("scancel")
    assert waiting == ("scancel", "--state=PENDING", "4")
    assert running == ("scancel", "-b", "-s", "TERM", "2", "3")
    assert "-a" in slurm.sent("squeue")[0]  # hidden partitions, too


@pytest.mark.parametrize("state", ["FAILED", "PENDING"])
def test_an_array_that_has_ended_needs_no_table(tmp_path: Path, state: str) -> None:
    answer = _line("7", state, task="0", label="array", mark=Tables(str(tmp_path)).folder_hash)
    (status,) = SlurmBackend(FakeSlurm(answer), "s", str(tmp_path)).poll(_tokens(1)).values()
    assert status.state is JobState.ABSENT


@pytest.mark.parametrize(("number", "passes"), [(errno.ENOSPC, True), (errno.EACCES, False)])
def test_a_full_disk_is_a_passing_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, passes: bool
) -> None:
    def full(_: int) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFailure, match="cannot write") as caught:
        Tables(str(tmp_path)).write([_job(TOKEN)], requeue=True)
    assert isinstance(caught.value, Unreachable) is passes
    assert list(tmp_path.glob("slurm/*")) == []


@pytest.mark.parametrize(
    "message",
    ["slurm: sbatch: unrecognized option '--frob'", "there is no sbatch on this machine: launch"],
)
def test_preflight_passes_on_the_refusal(tmp_path: Path, message: str) -> None:
    slurm = FakeSlurm()
    slurm.refusal = message
    with pytest.raises(EnvironmentFailure, match=message):
        SlurmBackend(slurm, "sweep", str(tmp_path)).preflight([{}])


@pytest.mark.parametrize(
    ("nodes", "passes"), [("gpu 0\ngpu 2", True), ("gpu 0", False), ("", False)]
)
def test_a_trial_waits_for_nodes_that_are_away(tmp_path: Path, nodes: str, passes: bool) -> None:
    """With all nodes up, the same message means that no node fits the job."""
    closed = slurm_commands.Closed("Requested node configuration is not available")

    class Away(FakeSlurm):
        def call(self, *argv: str, text: str | None = None) -> str:
            super().call(*argv, text=text)
            if argv[0] == "sbatch":
                raise closed
            return nodes

    slurm = Away()
    backend = SlurmBackend(slurm, "sweep", str(tmp_path), {"partition": "gpu"})
    with contextlib.nullcontext() if passes else pytest.raises(slurm_commands.Closed):
        backend.preflight([{}])
    assert [call[-2:] for call in slurm.sent("sinfo")] == [("-p", "gpu")]
