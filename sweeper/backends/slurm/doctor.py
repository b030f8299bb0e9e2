"""Checks a cluster before the first job: the controller, the partitions, whether Slurm would accept
such jobs, and whether it records ended jobs. Submits nothing."""

from collections.abc import Callable, Mapping

from sweeper.backends.base import Check
from sweeper.backends.slurm.accounting import forgets
from sweeper.backends.slurm.backend import SlurmBackend
from sweeper.backends.slurm.commands import Slurm
from sweeper.errors import EnvironmentFailure
from sweeper.sweep.labels import first_of

_SECONDS = 20.0
"""Seconds after which a command counts as not answered here."""


def checks(
    options: Mapping[str, object], configured: Callable[[], dict[str, object]]
) -> list[Check]:
    """Return the checks of `sweeper doctor --backend slurm`. `options` come from a grid's
    `launch.slurm`. `configured` reads the defaults from the user's configuration file. If the
    controller does not answer, all other checks fail without a query."""
    slurm = Slurm(_SECONDS)
    failures: list[EnvironmentFailure] = []

    def controller() -> str:
        try:
            return _controller(slurm)
        except EnvironmentFailure as error:
            failures.append(error)
            raise

    def then(action: Callable[[], str]) -> Callable[[], str]:
        def checked() -> str:
            if failures:
                raise LookupError("not checked: slurmctld did not answer")
            return action()

        return checked

    return [
        Check("slurmctld", True, controller),
        Check("partitions", True, then(lambda: _partitions(slurm))),
        Check("test submission", True, then(lambda: _trial(slurm, options, configured()))),
        Check("arrays", False, then(lambda: f"up to {slurm.largest_array()} tasks each")),
        Check("accounting", False, then(lambda: _accounting(slurm))),
    ]


def _controller(slurm: Slurm) -> str:
    configuration = slurm.configuration()
    version, name = (configuration.get(key, "?") for key in ("SLURM_VERSION", "ClusterName"))
    return f"Slurm {version}, cluster {name}"


def _partitions(slurm: Slurm) -> str:
    rows = [line.split() for line in slurm.call("sinfo", "-h", "-o", "%P %a %F %l").splitlines()]
    up: list[str] = []
    for row in rows:
        if row[1:2] == ["up"]:
            busy, idle, _, every = row[2].split("/")
            up.append(f"{row[0]} (of {every} nodes {busy} busy, {idle} idle; limit {row[3]})")
    if not up:
        raise LookupError("no partition is up: see `sinfo`")
    return first_of(up, 6)


def _trial(slurm: Slurm, options: Mapping[str, object], defaults: Mapping[str, object]) -> str:
    grid_options = {key: value for key, value in options.items() if key != "overrides"}
    SlurmBackend(slurm, "doctor", "/doctor", defaults).trial(grid_options)
    shown = ", ".join(
        sorted(key.removesuffix("_s") for key in defaults.keys() | grid_options.keys())
    )
    return "Slurm would accept a job" + (f" with {shown}" if shown else " without options")


def _accounting(slurm: Slurm) -> str:
    why = forgets(slurm)
    if why:
        age = slurm.configuration().get("MinJobAge", "?")
        raise LookupError(f"{why}, so results of ended jobs are available for only {age}")
    slurm.call("sacct", "-X", "-n", "-S", "now")
    return slurm.configuration()["AccountingStorageType"].rpartition("/")[2]
