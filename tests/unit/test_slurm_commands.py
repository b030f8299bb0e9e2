"""What Slurm's commands are given, and what follows when they fail."""

import subprocess

import pytest

from sweeper.backends import slurm_commands
from sweeper.errors import EnvironmentFailure, Unreachable

_POLICY = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit "
    "limit, user's size and/or time limits)"
)
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
        (1, "sbatch: fatal: Unable to process configuration file", False),
        (1, "allocation failure: Required partition not available (inactive or drain)", False),
        (1, f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{_POLICY}", False),
        (1, _POLICY, False),
        (1, f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{_POLICY}", True),
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
    assert isinstance(caught.value, slurm_commands.Full) is (_POLICY in errors and not for_good)
    assert "--help" not in str(caught.value)
    assert "MaxSubmit" not in errors or "(QOSMaxSubmitJobPerUserLimit)" in str(caught.value)


def test_a_configuration_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")
    with pytest.raises(EnvironmentFailure, match="SLURM_CONF names /nowhere") as caught:
        slurm_commands.Slurm().configuration()
    assert not isinstance(caught.value, Unreachable)


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
