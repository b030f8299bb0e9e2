"""Knows where things lie below a sweep's folder. Paths are relative to the store's root.

The files under `runs/` belong to the recipe and have tinker-cookbook's names and shapes; everything
else is ours.
"""

from sweeper.model.states import Event

__all__ = ["Layout", "attempt_of", "metrics_dir", "token"]

_LOG_PATH = "{log_path}"


class Layout:
    """The paths of one sweep. `inner`: the folder in a run's own where its metrics lie, "" for that
    itself (see `metrics_dir`)."""

    def __init__(self, sweep: str, inner: str = "") -> None:
        self.sweep = sweep
        self.inner = inner
        self.plan = f"{sweep}/sweep.json"
        self.state = f"{sweep}/state"
        self.heartbeats = f"{sweep}/heartbeats"
        self.runs = f"{sweep}/runs"
        self.launcher = f"{sweep}/launcher"
        self.lock = f"{sweep}/launcher/lock"
        self.launcher_log = f"{sweep}/launcher/log"
        self.observations = f"{sweep}/launcher/observations.json"
        self.service = f"{sweep}/launcher/service.json"
        self.judged = f"{sweep}/launcher/judged.json"
        self.identity = f"{sweep}/launcher/id"
        self.report = f"{sweep}/report"
        self.alarms = f"{sweep}/alarms"
        self.notes = f"{sweep}/notes"
        self.notify = f"{sweep}/notify"

    def request(self, name: str) -> str:
        """What a user asks of the launcher: `pause`, `parallel`, `stop`, `plan`,
        `cancel`."""
        return f"{self.launcher}/{name}.request.json"

    def code(self, name: str) -> str:
        """A file with code as it was at a launch, named by its hash."""
        return f"{self.sweep}/code/{name}"

    def launch(self, identity: str) -> str:
        """The immutable record of a launch: the provenance of the attempts that it starts."""
        return self.code(f"{identity}.launch.json")

    def chosen(self, stage: str, key: str) -> str:
        """What was chosen of the runs of a stage."""
        return f"{self.sweep}/chosen/{stage}.{key}.json"

    def event(self, run: str, attempt: int, event: Event) -> str:
        """The immutable record of something that happened to an attempt."""
        return f"{self.state}/{run}/{attempt}.{event.value}.json"

    def alarm(self, run: str, attempt: int, rule: str) -> str:
        """The immutable record of an alarm."""
        return f"{self.alarms}/{run}.{attempt}.{rule}.json"

    def action(self, run: str, attempt: int, rule: str) -> str:
        """The record of what `on_alarm` did about an alarm."""
        return f"{self.alarms}/{run}.{attempt}.{rule}.action.json"

    def heartbeat(self, run: str, attempt: int) -> str:
        """The heartbeat of an attempt, overwritten by its worker."""
        return f"{self.heartbeats}/{run}.{attempt}"

    def log_path(self, run: str, attempt: int) -> str:
        """The recipe's own folder for one attempt."""
        return f"{self.runs}/{run}.{attempt}"

    def recorded(self, run: str, attempt: int) -> str:
        """Where an attempt's metrics, checkpoints and iterations lie."""
        folder = self.log_path(run, attempt)
        return f"{folder}/{self.inner}" if self.inner else folder

    def attempt(self, run: str, attempt: int) -> str:
        """What the launcher and the worker keep about one attempt."""
        return f"{self.sweep}/attempts/{run}.{attempt}"

    def job(self, run: str, attempt: int) -> str:
        """What the worker is to do, written before the attempt is submitted."""
        return f"{self.attempt(run, attempt)}/job.json"

    def log(self, run: str, attempt: int) -> str:
        """Standard output and error of the recipe."""
        return f"{self.attempt(run, attempt)}/stdout.log"


def metrics_dir(said: str | None) -> str:
    """The folder inside a run's own that `launch.metrics_dir` names (`{log_path}/run`: "run"); ""
    without."""
    return said.removeprefix(_LOG_PATH).strip("/") if said else ""


def token(run: str, attempt: int) -> str:
    """The name by which a backend knows the job of an attempt: `<run id>-a<attempt>`."""
    return f"{run}-a{attempt}"


def attempt_of(token: str) -> tuple[str, int]:
    """The run's id and the number of the attempt that a token names. Raises `ValueError` for what
    is no token."""
    run, _, attempt = token.rpartition("-a")
    return run, int(attempt)
