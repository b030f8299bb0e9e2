"""The folder of one sweep in a store: its paths and documents. The names of the files under
`state/` are events, so one listing gives all states. Workers load this module, so its imports
are lazy."""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress

from sweeper.errors import AlreadyExists, NotFound, StoreError
from sweeper.sweep.states import ENDED, Event, RunState, fold, parse_name

TYPE_CHECKING = False  # importing typing takes some milliseconds at each start
if TYPE_CHECKING:
    from typing import TypeVar

    from sweeper.store.base import Store
    from sweeper.sweep.event import Outcome
    from sweeper.sweep.launcher import Observations, Service
    from sweeper.sweep.plan import Plan, Round
    from sweeper.sweep.request import Pause
    from sweeper.sweep.stage_inputs import Choice, Chosen

    T = TypeVar("T")

INFORMATIVE = ENDED | {Event.LOST, Event.CLAIMED}
"""Events whose files `read_outcome` reads. For other events, the name of the file is enough."""

Events = dict[str, set[tuple[int, Event]]]
"""The events of each run (by id), as pairs of attempt and event."""

_NAMED = 5  # the most sweeps that an error message names

_LOG_PATH = "{log_path}"


class SweepFolder:
    """The folder of the sweep `name` in `store`. Paths are relative to the store's root. `inner` is
    the path of a run's metrics folder within the run's folder, or "" (see `with_metrics_in`)."""

    def __init__(self, store: "Store", name: str, inner: str = "") -> None:
        self.store = store
        self.name = name
        self.inner = inner
        self.plan = f"{name}/sweep.json"
        self.state = f"{name}/state"
        self.heartbeats = f"{name}/heartbeats"
        self.runs = f"{name}/runs"
        self.launcher = f"{name}/launcher"
        self.lock = f"{name}/launcher/lock"
        self.launcher_log = f"{name}/launcher/log"
        self.launcher_messages = f"{name}/launcher/messages.log"
        self.observations = f"{name}/launcher/observations.json"
        self.service = f"{name}/launcher/service.json"
        self.judged = f"{name}/launcher/judged.json"
        self.identity = f"{name}/launcher/id"
        self.deletion = f"{name}/launcher/deletion"
        self.report = f"{name}/report"
        self.alarms = f"{name}/alarms"
        self.notes = f"{name}/notes"
        self.notify = f"{name}/notify"

    @classmethod
    def open(cls, root: str, name: str) -> "SweepFolder":
        """Return the folder of the sweep `name` in the store at `root`. Raises `StoreError`."""
        from sweeper.store.opening import open_store

        return cls(open_store(root), name)

    @classmethod
    def at_address(cls, address: str) -> "SweepFolder":
        """Return the folder of the sweep at `address`. Raises `StoreError`."""
        root, _, name = address.rpartition("/")
        return cls.open(root, name)

    def request(self, name: str) -> str:
        """Return the path of a user's request to the launcher: `pause`, `parallel`, `stop`,
        `plan`, `cancel`."""
        return f"{self.launcher}/{name}.request.json"

    def code(self, name: str) -> str:
        """Return the path of the file `name` in the folder for copies of the code."""
        return f"{self.name}/code/{name}"

    def launch(self, identity: str) -> str:
        """Return the path of a launch's record, which never changes. The record says where the code
        of the launch's attempts is."""
        return self.code(f"{identity}.launch.json")

    def chosen(self, stage: str, key: str) -> str:
        """Return the path of the recorded result of a choice among the runs of a stage."""
        return f"{self.name}/chosen/{stage}.{key}.json"

    def race_round(self, number: int) -> str:
        """Return the path of the record of a race's round `number`."""
        return f"{self.name}/race/{number}.json"

    def event(self, run: str, attempt: int, event: Event) -> str:
        """Return the path of an event's file. The file never changes."""
        return f"{self.state}/{run}/{attempt}.{event.value}.json"

    def stacks_request(self, run: str, attempt: int) -> str:
        """Return the path of a request for the stack traces of an attempt's recipe
        (`stacks.py`)."""
        return f"{self.state}/{run}/{attempt}.stacks"

    def stacks(self, run: str, attempt: int) -> str:
        """Return the path of the answer to a request for stack traces (`stacks.py`)."""
        return f"{self.attempt(run, attempt)}/stacks.json"

    def alarm(self, run: str, attempt: int, rule: str) -> str:
        """Return the path of an alarm's file. The file never changes."""
        return f"{self.alarms}/{run}.{attempt}.{rule}.json"

    def action(self, run: str, attempt: int, rule: str) -> str:
        """Return the path of the file that records what `on_alarm` did about an alarm."""
        return f"{self.alarms}/{run}.{attempt}.{rule}.action.json"

    def heartbeat(self, run: str, attempt: int) -> str:
        """Return the path of an attempt's heartbeat. The worker replaces this file every few
        seconds."""
        return f"{self.heartbeats}/{run}.{attempt}"

    def log_path(self, run: str, attempt: int) -> str:
        """Return the path of the folder in which an attempt's recipe writes its files."""
        return f"{self.runs}/{run}.{attempt}"

    def recorded(self, run: str, attempt: int) -> str:
        """Return the path of the folder with an attempt's metrics, checkpoints and iterations."""
        folder = self.log_path(run, attempt)
        return f"{folder}/{self.inner}" if self.inner else folder

    def attempt(self, run: str, attempt: int) -> str:
        """Return the path of the folder for the launcher's and the worker's files about an
        attempt."""
        return f"{self.name}/attempts/{run}.{attempt}"

    def job(self, run: str, attempt: int) -> str:
        """Return the path of `job.json`, which is written before the attempt is submitted."""
        return f"{self.attempt(run, attempt)}/job.json"

    def log(self, run: str, attempt: int) -> str:
        """Return the path of the log: the recipe's standard output and error."""
        return f"{self.attempt(run, attempt)}/stdout.log"

    def with_metrics_in(self, folder: str | None) -> "SweepFolder":
        """Return this sweep's folder with another `inner`, made from the grid's
        `launch.metrics_dir`: "run" for `{log_path}/run`, "" for None."""
        inner = folder.removeprefix(_LOG_PATH).strip("/") if folder else ""
        return SweepFolder(self.store, self.name, inner)

    def at(self, store: "Store") -> "SweepFolder":
        """Return the folder of the same sweep in another store, such as a worker's spool."""
        return SweepFolder(store, self.name, self.inner)

    @property
    def address(self) -> str:
        """The full address of the folder, used in messages and as a key."""
        return f"{self.store.root}/{self.name}"

    def read_plan(self) -> "Plan":
        """Read the plan of the last launch, including the runs that were added later (see
        `with_chosen`). Raises `NotFound` with a hint if there is no such sweep, and `StoreError` if
        the plan is damaged or the sweep's folder is a dangling link."""
        from sweeper.store.documents import read_as
        from sweeper.sweep.plan import read

        try:
            return self.with_chosen(read_as(self.store, self.plan, read))
        except NotFound as error:
            raise self._missing() from error

    def _missing(self) -> StoreError | NotFound:
        sweeps = find_sweeps(self.store)
        if self.name in sweeps:
            return StoreError(f"{self.address} is a dangling link: check that its disk is mounted")
        from sweeper.sweep.hint import hint

        listing = f"there is {', '.join(sweeps[:_NAMED])}" if sweeps else "it has no sweeps"
        if len(sweeps) > _NAMED:
            status = hint("status", root=self.store.root)
            listing += f" and {len(sweeps) - _NAMED} more (`{status}`)"
        return NotFound(f"no sweep {self.name!r} in {self.store.root}: {listing}")

    def with_chosen(self, plan: "Plan") -> "Plan":
        """Return `plan` with the runs that were added during the sweep, by the recorded choices of
        its stages or by the recorded rounds of its race. Raises `StoreError`."""
        if plan.race is not None:
            from sweeper.sweep.race import raced

            return raced(plan, self.read_rounds())
        if not plan.stages:
            return plan
        from sweeper.sweep.stage_runs import grown

        def runs_of(choice: "Choice") -> tuple[str, ...] | None:
            chosen = self.read_chosen(choice)
            return None if chosen is None else chosen.runs

        return grown(plan, runs_of)

    def read_chosen(self, choice: "Choice") -> "Chosen | None":
        """Read the result of a choice among the runs of a stage. Return None if the choice was
        not made yet. Raises `StoreError`."""
        from sweeper.store.documents import read_as
        from sweeper.sweep.stage_inputs import read_chosen

        try:
            return read_as(self.store, self.chosen(choice.take.stage, choice.key), read_chosen)
        except NotFound:
            return None

    def read_rounds(self) -> "tuple[Round, ...]":
        """Read the recorded rounds of a race, in order. Raises `StoreError`."""
        from sweeper.store.documents import read_as
        from sweeper.sweep.plan import read_round

        rounds: list[Round] = []
        with suppress(NotFound):
            while True:
                rounds.append(read_as(self.store, self.race_round(len(rounds) + 1), read_round))
        return tuple(rounds)

    def read_identity(self) -> str | None:
        """Read the sweep's identity, which distinguishes it from other sweeps of the same name.
        Return None if there was no launcher yet. Raises `StoreError`."""
        try:
            return self.store.read(self.identity).decode("ascii", "replace").strip()
        except NotFound:
            return None

    def ensure_identity(self) -> str:
        """Read the sweep's identity. Create it if there is none. Raises `StoreError`."""
        identity = self.read_identity()
        if identity:
            return identity
        identity = os.urandom(8).hex()
        try:
            self.store.create(self.identity, f"{identity}\n".encode())
        except AlreadyExists:
            return self.read_identity() or ""
        return identity

    def read_service(self) -> "Service":
        """Read `service.json`: what runs need to know about the last launch. Raises `NotFound`,
        `StoreError`."""
        from sweeper.store.documents import read_as
        from sweeper.sweep import launcher

        return read_as(self.store, self.service, launcher.read_service)

    def read_events(self) -> Events:
        """Read the events of all runs. Runs without events are left out. Raises `NotFound` if there
        are neither events nor a plan (the sweep was removed, or its disk is not mounted)."""
        events = _events_in(self.store.names(self.state))
        if not events and not self.store.exists(self.plan):
            raise NotFound(f"{self.address} does not exist")
        return events

    def peek_events(self, listed: Iterable[str] | None = None) -> Events:
        """Read the events of all runs. On a local store this method takes half the time of
        `read_events`, and returns {} if the sweep is missing. Do not change the result, because
        runs with the same events share one set. `listed` has the paths of the events' files, if the
        caller has listed them already."""
        top = self.store.local_path(self.state)
        if listed is not None:
            return _events_in(listed)
        if top is None:
            return self.read_events()
        events: Events = {}
        sets: dict[frozenset[str], set[tuple[int, Event]]] = {}
        try:
            for run in os.listdir(top):
                names = frozenset(_names_in(f"{top}/{run}"))
                if names not in sets:
                    sets[names] = {event for name in names if (event := parse_name(name))}
                if sets[names]:
                    events[run] = sets[names]
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StoreError(f"{error.filename}: {error.strerror}") from error
        return events

    def read_states(self) -> dict[str, RunState]:
        """Read the state of each run that has events."""
        return {run: fold(events) for run, events in self.read_events().items()}

    def read_event(self, run: str, attempt: int, event: Event) -> "Outcome":
        """Read the body of an event. Raises `NotFound`, `StoreError`."""
        from sweeper.store.documents import read_as
        from sweeper.sweep import event as bodies

        return read_as(self.store, self.event(run, attempt, event), bodies.read)

    def read_outcome(self, run: str, state: RunState) -> "Outcome":
        """Read the body of `state.event`. Return an empty outcome if the event is not in
        `INFORMATIVE`, or has no file. Raises `StoreError` if the body is damaged or cannot be
        read."""
        from sweeper.sweep.event import NOTHING

        if state.event is None or state.event not in INFORMATIVE:
            return NOTHING
        try:
            return self.read_event(run, state.attempt, state.event)
        except NotFound:
            return NOTHING

    def place_of(self, run: str, attempt: int) -> str | None:
        """Read the backend of an attempt from its intent, the event before its submission. If the
        intent names no backend, read the intents of earlier attempts, the latest first. Return
        None if no intent names a backend. Raises `StoreError`."""
        for number in range(attempt, 0, -1):
            with suppress(NotFound):
                place = self.read_event(run, number, Event.INTENT).place
                if place is not None:
                    return place
        return None

    def read_request(self, name: str, read: "Callable[[object, str], T]") -> "T | None":
        """Read a user's request to the launcher. `read` converts the document. Return None if there
        is no request, or if the request is damaged, because a damaged request must not end a
        launcher. Raises `StoreError` if the store does not answer."""
        from sweeper.store.documents import read_as

        path = self.request(name)
        try:
            return read_as(self.store, path, read)
        except NotFound:
            return None
        except StoreError:
            if self.store.exists(path):
                return None
            raise

    def read_observations(self) -> "Observations":
        """Read the observations that the launcher last published. Some observations may be outdated
        if the launcher has ended. `held` and `paused` are updated if a user has paused or continued
        the sweep since then. Raises `StoreError`."""
        from sweeper.store.documents import read_as
        from sweeper.sweep import launcher

        def read_pause(document: object, place: str) -> "Pause | None":
            # Imported late: few sweeps have ever been paused.
            from sweeper.sweep.request import read_pause

            return read_pause(document, place)

        try:
            observations = read_as(self.store, self.observations, launcher.read_observations)
        except NotFound:
            observations = launcher.NO_OBSERVATIONS
        pause = self.read_request("pause", read_pause)
        if pause is not None and not observations.paused:
            held = observations.held or pause.reason(self.name)
            return observations._replace(held=held, paused=True)
        if pause is None and observations.paused:
            return observations._replace(held=None, paused=False)
        return observations


def find_sweeps(store: "Store") -> list[str]:
    """Return the names of the sweeps at the store's root, sorted."""
    return sorted(store.folders_with("sweep.json"))


def _events_in(paths: Iterable[str]) -> Events:
    events: Events = {}
    parsed: dict[str, tuple[int, Event] | None] = {}  # There are few names but many files.
    for path in paths:
        folder, _, name = path.rpartition("/")
        if name not in parsed:
            parsed[name] = parse_name(name)
        event = parsed[name]
        if event is not None:
            events.setdefault(folder.rpartition("/")[2], set()).add(event)
    return events


def _names_in(folder: str) -> list[str]:
    """Return the names in `folder`; [] if it is not a folder."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def token(run: str, attempt: int) -> str:
    """Return the token of an attempt, by which backends identify its job: `<run id>-a<attempt>`."""
    return f"{run}-a{attempt}"


def attempt_of(token: str) -> tuple[str, int]:
    """Split a token into the run's id and the number of the attempt. Raises `ValueError` if
    `token` is not a token."""
    run, _, attempt = token.rpartition("-a")
    return run, int(attempt)
