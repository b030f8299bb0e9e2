"""What Slurm's answers mean, and what it is asked for."""

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest

from sweeper.backends import slurm_commands, slurm_job, slurm_options
from sweeper.backends.base import JobSpec, JobState
from sweeper.backends.slurm import SlurmBackend
from sweeper.backends.slurm_tables import Tables
from sweeper.errors import EnvironmentFailure, GridError, Unreachable
from sweeper.grid import parse_grid
from sweeper.grid.aws_batch import read_aws_batch
from sweeper.grid.nodes import Problems
from sweeper.grid.slurm import asked_by, unmatched
from sweeper.launcher import environment

MARK = "0123456789abcdef"
TABLE = "aaaaaaaaaaaa"


def _line(
    job: str, state: str, code: str = "0", restarts: int = 0, task: str = "N/A", why: str = "None",
    known: str = "cccccccccccc-a1", mark: str = MARK,
) -> str:  # fmt: skip
    return f"{job}|{task}|{job}|{state}|{code}|{restarts}|sweeper:{mark}:{TABLE}:{known}|{why}|"


@pytest.mark.parametrize(
    ("state", "code", "expected"),
    [
        ("PENDING", "0", (JobState.PENDING, None, "Resources", False)),
        ("REQUEUE_HOLD", "0", (JobState.PENDING, None, "Resources", False)),
        ("RUNNING", "0", (JobState.RUNNING, None, None, False)),
        ("COMPLETING", "0", (JobState.RUNNING, None, None, False)),
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
def test_what_a_state_means(state: str, code: str, expected: object) -> None:
    (job,) = slurm_commands.queue_of(_line("7", state, code, why="Resources"), MARK)
    assert tuple(slurm_commands.status_of(job)) == expected


def test_only_the_sweeps_own_jobs_are_seen() -> None:
    lines = [
        _line("1", "RUNNING"),
        _line("2", "RUNNING", mark="f" * 16),
        f"3|N/A|3|RUNNING|0|0|a comment that quotes {MARK}|None|",
        "4|N/A|4|RUNNING|0|0|(null)|None|",
        "",
        _line("5", "PENDING", task="17", known="array", restarts=2),
    ]
    jobs = slurm_commands.queue_of("\n".join(lines), MARK)
    assert [(job.id, job.task, job.restarts, job.token) for job in jobs] == [
        ("1", 0, 0, "cccccccccccc-a1"),
        ("5_17", 17, 2, None),
    ]


def test_a_line_of_ours_that_cannot_be_read_is_no_absence() -> None:
    (job,) = slurm_commands.queue_of(_line("7", "PENDING", why="a|b"), MARK)
    assert job.reason == "a|b"
    for line in (_line("7", "RUNNING", known="cccc"), _line("7", "RUNNING").rpartition("|None")[0]):
        with pytest.raises(Unreachable, match="cannot be read"):
            slurm_commands.queue_of(line, MARK)


def test_what_accounting_says() -> None:
    comment = f"sweeper:{MARK}:{TABLE}"
    text = "\n".join(
        [
            f"7_3|CANCELLED by 1000|0:15|{comment}:array",
            f"7_[4-9%2]|PENDING|0:0|{comment}:array",
            f"8|NODE_FAIL|1:0|{comment}:cccccccccccc-a2",
            f"8|OUT_OF_MEMORY|0:125|{comment}:cccccccccccc-a2",
            f"9|COMPLETED|0:0|{comment.replace(MARK, 'f' * 16)}:array",
        ]
    )
    jobs = slurm_commands.accounted_of(text, MARK)
    assert [(job.id, job.state, job.code, job.restarts) for job in jobs] == [
        ("7_3", "CANCELLED", -15, 0),
        ("8", "OUT_OF_MEMORY", -125, 1),
    ]


class FakeSlurm(slurm_commands.Slurm):
    """Remembers how it was called; `answer` is what squeue says."""

    def __init__(self, answer: str = "") -> None:
        super().__init__()
        self.answer, self.calls = answer, []
        self.refusal: str | None = None

    def call(self, *argv: str, text: str | None = None) -> str:
        self.calls.append((*argv, text) if text else argv)
        if argv[0] == "sbatch" and self.refusal:
            raise EnvironmentFailure(self.refusal)
        if argv[0] == "scontrol":
            return "MaxArraySize            = 4\nAccountingStorageType   = (null)\n"
        return {"squeue": self.answer, "sbatch": "12;cluster\n"}.get(argv[0], "")

    def sent(self, name: str) -> list[tuple[str, ...]]:
        return [call for call in self.calls if call[0] == name]


def _job(token: str, **asked: object) -> JobSpec:
    return JobSpec(token, "title", ["python", "/s/sweep", token], "/s/sweep", asked)


def _tokens(count: int) -> list[str]:
    return [f"{number:012x}-a1" for number in range(count)]


def test_arrays_are_split_and_those_that_ask_alike_go_together(tmp_path: Path) -> None:
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


def test_a_refused_submission_leaves_no_table_and_a_lost_one_does(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    backend = SlurmBackend(slurm, "sweep", str(tmp_path))
    slurm.refusal = "slurm: sbatch: Invalid account"
    with pytest.raises(EnvironmentFailure):
        backend.submit([_job("a" * 12 + "-a1")])
    assert list(tmp_path.glob("slurm/*")) == []

    class Lost(FakeSlurm):
        def submit(self, options: object, script: str) -> str:
            raise Unreachable("no answer")

    with pytest.raises(Unreachable):
        SlurmBackend(Lost(), "sweep", str(tmp_path)).submit([_job("a" * 12 + "-a1")])
    assert len(list(tmp_path.glob("slurm/*.json"))) == 1


def test_a_job_that_was_started_again_serves_the_next_attempts(tmp_path: Path) -> None:
    tables = Tables(str(tmp_path))
    run = "c" * 12
    answer = _line("7", "PENDING", restarts=2, mark=tables.mark, known=f"{run}-a2")
    backend = SlurmBackend(FakeSlurm(answer), "sweep", str(tmp_path))
    states = {token: status.state for token, status in backend.poll(
        [f"{run}-a{number}" for number in range(1, 6)]).items()}  # fmt: skip
    waits, unknown = JobState.PENDING, JobState.ABSENT
    assert list(states.values()) == [unknown, waits, waits, waits, unknown]
    slurm = FakeSlurm(answer)
    SlurmBackend(slurm, "sweep", str(tmp_path)).submit([_job(f"{run}-a4"), _job(f"{run}-a5")])
    assert [call[2] for call in slurm.sent("sbatch")] == [f"--job-name={run}-a5"]


def test_an_array_whose_table_is_gone_is_no_reason_to_call_its_jobs_absent(tmp_path: Path) -> None:
    answer = _line("7", "RUNNING", task="0", known="array", mark=Tables(str(tmp_path)).mark)
    with pytest.raises(Unreachable, match="which runs the array 7_0 has"):
        SlurmBackend(FakeSlurm(answer), "sweep", str(tmp_path)).poll(["c" * 12 + "-a1"])


def test_cancelling_asks_once_for_an_array(tmp_path: Path) -> None:
    tables = Tables(str(tmp_path))
    name = tables.write([_job(token) for token in _tokens(300)], requeue=True)
    states = ["PENDING" if number % 3 else "RUNNING" for number in range(300)]
    lines = [
        _line("7", state, task=str(number), known="array", mark=tables.mark).replace(TABLE, name)
        for number, state in enumerate(states)
    ]
    slurm = FakeSlurm("\n".join(lines))
    SlurmBackend(slurm, "sweep", str(tmp_path)).cancel(_tokens(300)[:12])
    waiting, running = slurm.sent("scancel")
    assert waiting == ("scancel", "--state=PENDING", "7_[1-2,4-5,7-8,10-11]")
    assert running == ("scancel", "-b", "-s", "TERM", "7_[0,3,6,9]")


def test_what_is_suspended_is_not_signalled(tmp_path: Path) -> None:
    tables = Tables(str(tmp_path))
    states = ["SUSPENDED", "STOPPED", "RUNNING", "NEW_STATE", "REQUEUE_HOLD", "COMPLETED"]
    lines = [
        _line(str(number), state, mark=tables.mark, known=token)
        for number, (state, token) in enumerate(zip(states, _tokens(6), strict=True))
    ]
    slurm = FakeSlurm("\n".join(lines))
    SlurmBackend(slurm, "sweep", str(tmp_path)).cancel(_tokens(6))
    waiting, running = slurm.sent("scancel")
    assert waiting == ("scancel", "--state=PENDING", "4")
    assert running == ("scancel", "-b", "-s", "TERM", "2", "3")
    assert "-a" in slurm.sent("squeue")[0]  # hidden partitions, too


def test_an_array_that_has_ended_needs_no_table(tmp_path: Path) -> None:
    answer = _line("7", "FAILED", task="0", known="array", mark=Tables(str(tmp_path)).mark)
    (status,) = SlurmBackend(FakeSlurm(answer), "s", str(tmp_path)).poll(_tokens(1)).values()
    assert status.state is JobState.ABSENT


@pytest.mark.parametrize(("number", "passes"), [(errno.ENOSPC, True), (errno.EACCES, False)])
def test_a_full_disk_may_have_room_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, passes: bool
) -> None:
    def full(_: int) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFailure, match="cannot write") as caught:
        Tables(str(tmp_path)).write([_job("a" * 12 + "-a1")], requeue=True)
    assert isinstance(caught.value, Unreachable) is passes
    assert list(tmp_path.glob("slurm/*")) == []


_HELP = 'Try "sbatch --help" for more information\n'


@pytest.mark.parametrize(
    ("code", "errors", "for_good"),
    [
        (1, "sbatch: error: Batch job submission failed: Invalid account", True),
        (255, f"sbatch: unrecognized option '--frob'\n{_HELP}", True),
        (-9, "sbatch: warning: something", False),
        (1, "", False),
        (1, "sbatch: error: resolve_ctls: Could not establish a configuration source", False),
        (1, "sbatch: fatal: failed to fetch config", False),
    ],
)
def test_what_refuses_for_good(
    monkeypatch: pytest.MonkeyPatch, code: int, errors: str, for_good: bool
) -> None:
    def run(argv: list[str], **_: object) -> object:
        return subprocess.CompletedProcess(argv, code, "", errors)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(EnvironmentFailure) as caught:
        slurm_commands.Slurm().submit([], "")
    assert isinstance(caught.value, Unreachable) is not for_good
    assert "--help" not in str(caught.value)


def test_what_commands_get_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def run(argv: list[str], env: dict[str, str], **_: object) -> object:
        seen.update(env)
        return subprocess.CompletedProcess(argv, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SBATCH_ACCOUNT")
    for name in (*kept, "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SBATCH_WAIT", "SQUEUE_FORMAT"):
        monkeypatch.setenv(name, "1")
    slurm_commands.Slurm().call("squeue")
    assert {name for name in seen if name.startswith(("SLURM_", "SBATCH_", "SQUEUE_"))} == {*kept}


@pytest.mark.parametrize(
    "message",
    ["slurm: sbatch: unrecognized option '--frob'", "there is no sbatch on this machine: launch"],
)
def test_what_preflight_passes_on(tmp_path: Path, message: str) -> None:
    slurm = FakeSlurm()
    slurm.refusal = message
    with pytest.raises(EnvironmentFailure, match=message):
        SlurmBackend(slurm, "sweep", str(tmp_path)).preflight([{}])


def test_a_configuration_that_is_nested_too_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "sweeper").mkdir()
    (tmp_path / "sweeper" / "config.toml").write_text(f"a = {'[' * 5000}{']' * 5000}")
    with pytest.raises(EnvironmentFailure, match=r"config\.toml: .*recursion"):
        slurm_options.configured()
    problems = Problems()
    assert read_aws_batch(None, problems, used=True) == {}
    assert "recursion" in str(problems.error())


def test_options() -> None:
    asked = {"partition": "gpu", "cpus": 4, "time_s": 5400.0, "extra": ["--nice=3"]}
    assert slurm_options.options(asked) == [
        *("--partition=gpu", "--cpus-per-task=4", "--time=1:30:00", "--signal=B:TERM@120"),
        *("--requeue", "--nice=3"),
    ]
    short = slurm_options.options({"time_s": 60.0, "requeue": False})
    assert short == ["--time=0:01:00", "--signal=B:TERM@15", "--no-requeue"]
    assert "--signal=B:TERM@30" in slurm_options.options({"signal_s": 30.0})
    # A signal of the configuration file's, with a time of the grid's.
    assert "--signal=B:TERM@60" in slurm_options.options({"time_s": 120.0, "signal_s": 600.0})


def test_the_script_holds_nothing_of_a_grids_but_setup() -> None:
    text = slurm_options.script(["module load 'a b' \\"], "/s/it's a folder/t.json")
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash" and lines[2:4] == ["module load 'a b' \\", ""]
    assert lines[-1].startswith("exec ") and lines[-1].endswith("'/s/it'\"'\"'s a folder/t.json'")
    assert len(slurm_options.script([], "/t").splitlines()) == 2


def test_what_a_run_asks_for() -> None:
    options = {
        "mem": "4G",
        "overrides": [
            {"if": {"rank": [64], "opt.name": ["adam", "sgd"]}, "mem": "32G"},
            {"if": {"rank": [8.0]}, "cpus": 2},
        ],
    }
    assert asked_by(options, {"rank": 64, "opt.name": "sgd"}) == {"mem": "32G"}
    assert asked_by(options, {"rank": 64}) == {"mem": "4G"}
    assert asked_by(options, {"rank": 8}) == {"mem": "4G", "cpus": 2}
    (unused,) = unmatched(options, [{"rank": 8}, {"rank": 64}])
    assert unused == "launch.slurm.overrides: no run has rank, opt.name as asked for"


def test_what_a_recipe_sees_of_a_jobs_environment() -> None:
    import base64

    before = base64.b64encode(b"A=1\0B=2\0").decode()
    ours = {"A": "1", "B": "3", "C": "4", "SLURM_JOB_ID": "7", "SWEEPER_BEFORE": before}
    found = slurm_job.environment(ours)
    assert found["SWEEPER_KEEP"].split("\n") == ["B", "C", "SLURM_JOB_ID"]
    assert "SWEEPER_BEFORE" not in found and found["A"] == "1"


def test_an_environment_beside_the_sweep_is_private_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("A_SECRET", "the value of it")
    place = tmp_path / "sweeps" / "s" / "launcher" / "environment.json"
    written = environment.write("/s", {}, str(place))
    assert written == str(place) and place.stat().st_mode & 0o777 == 0o600
    assert "the value of it" in place.read_text()
    (note,) = (tmp_path / "home" / "environments").iterdir()
    assert "the value of it" not in note.read_text()
    os.utime(note, (0, 0))
    assert list(environment.kept()) == [(str(place), "/s")]
    environment.forget(str(place))
    assert list(environment.kept()) == [(str(note), "/s")]


def test_options_from_the_command_line_and_from_a_file_that_is_extended(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("recipe: r\nlaunch: {slurm: {mem: 4G, qos: low, cpus: 2}}")
    text = "extends: a.yaml\nlaunch: {slurm: {mem: 8G, qos: null}}"
    given = ["launch.slurm.partition=gpu", "launch.slurm.cpus=4"]
    grid = parse_grid(text, str(tmp_path / "b.yaml"), given)
    assert grid.launch.slurm == {"mem": "8G", "cpus": 4, "partition": "gpu"}
    with pytest.raises(GridError, match=r"launch.slurm.cpus is 1 to 1000000, not 0"):
        parse_grid(text, str(tmp_path / "b.yaml"), ["launch.slurm.cpus=0"])
