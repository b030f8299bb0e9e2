"""Looks at a cluster before the first job: the controller, the partitions, whether it would take
such jobs, and what it keeps of those that are over. Only asks; nothing is submitted."""

from collections.abc import Callable, Mapping
from typing import Any

from sweeper.backends.slurm import SlurmBackend
from sweeper.backends.slurm_commands import Slurm
from sweeper.backends.slurm_options import configured

__all__ = ["Look", "looks"]

Look = tuple[str, bool, Callable[[], str]]
"""What is looked at, whether a launch needs it, and a function that says what was found, or raises
`SweeperError` or `LookupError` with what is wrong."""


def looks(asked: Mapping[str, Any] | None) -> list[Look]:
    """What `sweeper doctor --backend slurm` looks at; `asked` is a grid's `launch.slurm`."""
    slurm = Slurm()
    return [
        ("slurmctld", True, lambda: _controller(slurm)),
        ("partitions", True, lambda: _partitions(slurm)),
        ("a trial of sbatch", True, lambda: _trial(slurm, asked or {})),
        ("arrays", False, lambda: f"up to {slurm.largest_array()} tasks each"),
        ("accounting", False, lambda: _accounting(slurm)),
    ]


def _controller(slurm: Slurm) -> str:
    found = slurm.configuration()
    return f"Slurm {found.get('SLURM_VERSION', '?')}, cluster {found.get('ClusterName', '?')}"


def _partitions(slurm: Slurm) -> str:
    rows = [line.split() for line in slurm.call("sinfo", "-h", "-o", "%P %a %D %l").splitlines()]
    up = [f"{row[0]} ({row[2]} nodes, limit {row[3]})" for row in rows if row[1:2] == ["up"]]
    if not up:
        raise LookupError("none is up: `sinfo` shows more")
    return ", ".join(up[:6]) + (f" and {len(up) - 6} more" if len(up) > 6 else "")


def _trial(slurm: Slurm, asked: Mapping[str, Any]) -> str:
    defaults = configured()
    given = {key: value for key, value in asked.items() if key != "overrides"}
    SlurmBackend(slurm, "doctor", "/doctor", defaults).preflight([given])
    shown = ", ".join(sorted(defaults.keys() | given.keys()))
    return "it would take a job" + (f" with {shown}" if shown else ", with nothing asked for")


def _accounting(slurm: Slurm) -> str:
    kind = slurm.configuration().get("AccountingStorageType", "none")
    age = slurm.configuration().get("MinJobAge", "?")
    if kind.endswith(("none", "(null)")):
        raise LookupError(f"none: what became of a job is known for {age} after its end")
    slurm.call("sacct", "-X", "-n", "-S", "now")
    return kind.rpartition("/")[2]
