"""Slurm's commands: their environment, their answers, and their errors."""

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from sweeper.backends.slurm import commands as slurm_commands
from sweeper.errors import EnvironmentFailure, Unreachable

_POLICY = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit "
    "limit, user's size and/or time limits)"
)
_HELP = 'Try "sbatch --help" for more information\n'
Answer = Callable[..., tuple[int, str, str]]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], None]:
    """Return a function that sets exit code, output and errors of programs by their arguments."""

    def answer_with(answer: Answer) -> None:
        def run(argv: list[str], env: dict[str, str], **_: Any) -> object:
            return subprocess.CompletedProcess(argv, *answer(argv, env))

        monkeypatch.setattr(subprocess, "run", run)

    return answer_with


@pytest.mark.parametrize(
    ("code", "errors", "for_good"),
    [
        (1, "sbatch: error: Batch job submission failed: Invalid account", True),
        (255, f"sbatch: unrecognized option '--frob'\n{_HELP}", True),
        (-9, "sbatch: warning: something", False),
        (1, "", False),
        (1, "sbatch: error: resolve_ctls: Could not establish a configuration source", False),
        (1, "sbatch: fatal: failed to fetch config", False),
        (1, "sbatch: fatal: Unable to process configuration file", False),
        (1, "allocation failure: Required partition not available (inactive or drain)", False),
        (1, f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{_POLICY}", False),
        (1, _POLICY, False),
        (1, f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{_POLICY}", True),
    ],
)
def test_refusals_for_good_and_passing_errors(
    answers: Callable[[Answer], None], code: int, errors: str, for_good: bool
) -> None:
    answers(lambda *_: (code, "", errors))
    with pytest.raises(EnvironmentFailure) as caught:
        slurm_commands.Slurm().submit([], "")
    assert isinstance(caught.value, Unreachable) is not for_good
    assert isinstance(caught.value, slurm_commands.Full) is (_POLICY in errors and not for_good)
    assert "--help" not in str(caught.value)
    assert "MaxSubmit" not in errors or "(QOSMaxSubmitJobPerUserLimit)" in str(caught.value)


def test_a_closed_partition_is_a_refusal_and_a_timeout_is_not(
    answers: Callable[[Answer], None],
) -> None:
    """Only a refused submission certainly leaves no job."""
    failed = "sbatch: error: Batch job submission failed: "
    errors = iter(["Required partition not available (inactive or drain)", "Socket timed out"])
    answers(lambda *_: (1, "", f"{failed}{next(errors)}"))
    for closed in (True, False):
        with pytest.raises(Unreachable) as caught:
            slurm_commands.Slurm().submit([], "")
        assert isinstance(caught.value, slurm_commands.Closed) is closed


def test_a_missing_slurm_conf_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")
    with pytest.raises(EnvironmentFailure, match="SLURM_CONF names /nowhere") as caught:
        slurm_commands.Slurm().configuration()
    assert not isinstance(caught.value, Unreachable)


def test_commands_get_only_slurms_settings_of_the_environment(
    answers: Callable[[Answer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, str] = {}
    answers(lambda _, env: (seen.update(env), (0, "", ""))[1])
    passed = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SBATCH_ACCOUNT")
    for name in (*passed, "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SBATCH_WAIT"):
        monkeypatch.setenv(name, "1")
    for name in ("SQUEUE_FORMAT", "SINFO_PARTITION"):
        monkeypatch.setenv(name, "1")
    slurm_commands.Slurm().call("squeue")
    ours = ("SLURM_", "SBATCH_", "SQUEUE_", "SINFO_")
    assert {name for name in seen if name.startswith(ours)} == {*passed, "SLURM_TIME_FORMAT"}


def test_lines_of_accounting_are_parsed() -> None:
    mark = "0123456789abcdef"
    comment = f"sweeper:{mark}:aaaaaaaaaaaa"
    text = "\n".join(
        [
            f"7_3|CANCELLED by 1000|0:15|{comment}:array",
            f"7_[4-9%2]|PENDING|0:0|{comment}:array",
            f"8|NODE_FAIL|1:0|{comment}:cccccccccccc-a2",
            f"8|OUT_OF_MEMORY|0:125|{comment}:cccccccccccc-a2",
            f"9|COMPLETED|0:0|{comment.replace(mark, 'f' * 16)}:array",
        ]
    )
    jobs = slurm_commands.accounted_of(text, mark)
    assert [(job.id, job.state, job.code, job.restarts) for job in jobs] == [
        ("7_3", "CANCELLED", -15, 0),
        ("8", "OUT_OF_MEMORY", -125, 1),
    ]


@pytest.mark.parametrize(
    ("partition", "variable", "away", "expected"),
    [
        ("gpu", None, "cpu* gpu", True),
        ("gpu", None, "cpu*", False),
        ("gpu", "cpu", "cpu*", False),
        (None, "gpu", "gpu", True),
        (None, "gpu", "cpu*", False),
        (None, None, "cpu* gpu", True),
        (None, None, "gpu", False),
    ],
)
def test_down_nodes_count_only_in_the_jobs_partition(
    answers: Callable[[Answer], None], monkeypatch: pytest.MonkeyPatch, partition: str | None,
    variable: str | None, away: str, expected: bool,
) -> None:  # fmt: skip
    """`away` are the partitions with down nodes; the default one has a star."""

    def nodes(argv: list[str], _: object) -> tuple[int, str, str]:
        named = argv[argv.index("-p") + 1] if "-p" in argv else None
        rows = [f"{name} 1" for name in away.split() if named in (None, name.strip("*"))]
        return 0, "\n".join([*rows, ""]), ""

    answers(nodes)
    monkeypatch.delenv("SBATCH_PARTITION", raising=False)
    if variable is not None:
        monkeypatch.setenv("SBATCH_PARTITION", variable)
    assert slurm_commands.Slurm().nodes_away(partition) is expected
