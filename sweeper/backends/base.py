"""Defines what a backend is (`Backend`, open for one sweep) and how it describes itself
(`BackendType`). A backend holds no state: it finds its jobs by their tokens."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from typing import NamedTuple

from sweeper.errors import EnvironmentFailure
from sweeper.fields.sections import Field, Nested, Section
from sweeper.sweep.launch_settings import MOST_PANES

__all__ = [
    "Backend",
    "BackendType",
    "Batches",
    "Capabilities",
    "Check",
    "Counter",
    "JobSpec",
    "JobState",
    "JobStatus",
    "Leftover",
    "Manifest",
    "require",
]

Options = Mapping[str, object]
"""A plan's options for a backend: its section of `launch`, as in the document."""
_NOTHING = Section()


class JobSpec(NamedTuple):
    """A job to start. `argv` is executed directly, never by a shell; its last element is the token.
    `title` is for people. `resources` are requests to a scheduler (unused by local and tmux). Jobs
    with the same `window` are shown together, at most `window_panes` of them, by backends that show
    jobs. When the job is stopped,
    the recipe has `grace_s` seconds to save."""

    token: str
    title: str
    argv: Sequence[str]
    cwd: str
    resources: Mapping[str, object]
    window: str | None = None
    grace_s: float = 30.0
    window_panes: int = MOST_PANES


class JobState(Enum):
    """The state of a job as its backend sees it."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"  # was asked to end; it may still have processes
    ENDED = "ended"
    ABSENT = "absent"  # the backend answered that it does not know the job


GONE = (JobState.ENDED, JobState.ABSENT)
"""The states of a job that no longer runs."""


class JobStatus(NamedTuple):
    """The status of a job. `code` and `reason` are given only if the backend itself knows them
    (tmux never does). `preempted`: the job ended because its machine was taken away or failed, not
    because of the run. `node` is the job's current or last machine. `since` is when it began to
    wait or to stop, in UTC (`2026-01-31T12:01:03Z`), if it waits or stops."""

    state: JobState
    code: int | None = None
    reason: str | None = None
    preempted: bool = False
    node: str | None = None
    since: str | None = None


class Backend(ABC):
    """The interface through which the jobs of a sweep are executed.

    Every method raises `sweeper.errors.Unreachable` if the backend does not answer, which must
    never be taken for ABSENT. The first five methods are required; a backend implements those of
    the others that make sense for it.
    """

    name: str
    shows = False
    """Whether people watch its jobs, so that `show` is worth calling."""

    @abstractmethod
    def submit(self, jobs: Sequence[JobSpec]) -> None:
        """Start the jobs. Not idempotent: call `find` first when in doubt."""

    @abstractmethod
    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        """Return token -> the backend's own id, for those of `tokens` that it once accepted and
        still remembers."""

    @abstractmethod
    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        """Return the status of every one of `tokens`, in one call for any number of them."""

    @abstractmethod
    def cancel(self, tokens: Sequence[str]) -> Collection[str] | None:
        """Ask the jobs to stop: send SIGTERM to the workers of running jobs and withdraw waiting
        jobs. Ignore unknown tokens. Return the tokens of jobs that cannot be stopped yet
        (suspended, about to begin), or None. The caller repeats the call for these tokens."""

    @abstractmethod
    def logs(self, token: str) -> Iterator[str]:
        """Yield the lines that the backend itself stores of a job, if any."""

    def preflight(self, resources: Sequence[Mapping[str, object]]) -> None:
        """Check that the backend would accept jobs with these resources, before anything is
        recorded. Raises `EnvironmentFailure` if it never will."""
        del resources

    def forget(self, tokens: Sequence[str]) -> None:
        """Remove the records of those of these jobs that have ended, if the backend can. They will
        not be queried again."""
        del tokens

    def room(self, resources: Mapping[str, object] | None = None) -> int | None:
        """Return how many more jobs can start now; None if jobs may wait at the backend instead.
        Jobs beyond it are not submitted, and stay planned. With `resources` only jobs that request
        these count."""
        del resources
        return None

    def location(self) -> Mapping[str, str]:
        """Return the fields that distinguish the place where jobs wait from others of its kind
        (`{"cluster": "a"}`). They never change."""
        return {}

    def show(self, status: str, words: Mapping[str, str]) -> None:
        """Show one line on the state of the sweep and a label for jobs, by token: a state,
        `stale`, `paused: <why>`. Called after changes, with only the labels that changed."""
        del status, words


class Counter(NamedTuple):
    """An environment variable in which a job finds how often its backend has restarted it; `first`
    is its value at the first start."""

    variable: str
    first: int = 0


class Capabilities(NamedTuple):
    """The capabilities of a backend's jobs. By default they run on this machine, as this user.

    `here`: they run on this machine, so they reach the engine over loopback. `files`: they see the
    folders of this machine, so they can use a root, a checkout and the private file with the runs'
    environment. `python`: the interpreter for the worker and the recipe (None: the one used here).
    `secrets`: the names of the secrets that the backend itself passes to its jobs. `restarts`: the
    variable that counts how often the backend has restarted a job by itself (None: it never does;
    see `sweeper/worker/claim.py`). `credentials`: the variables that the launcher needs to reach
    the backend. Runs do not get one of them unless their grid names it in `secrets:`.
    """

    here: bool = True
    files: bool = True
    python: str | None = None
    secrets: frozenset[str] = frozenset()
    restarts: Counter | None = None
    credentials: tuple[str, ...] = ()


class Check(NamedTuple):
    """A check of `doctor`. `look` returns its result, or raises `SweeperError` or `LookupError`
    with the problem. `needed`: a launch requires it."""

    name: str
    needed: bool
    look: Callable[[], str]


def require(checks: Iterable[Check], backend: str) -> None:
    """Run the checks that a launch requires. Raises `EnvironmentFailure` at the first that fails;
    the backend's name precedes the problem."""
    for check in checks:
        if check.needed:
            try:
                check.look()
            except LookupError as error:
                raise EnvironmentFailure(f"{backend}: {error}") from error


class Leftover(NamedTuple):
    """Files that belong together and are no longer needed, and why. Those of a sweep on a remote
    store are addresses. `release` is called with the paths to be removed, before they are; if it
    raises `EnvironmentFailure`, they stay."""

    paths: Sequence[str]
    why: str
    release: Callable[[Sequence[str]], None] | None = None


Batches = Sequence[Sequence[JobSpec]]
"""Jobs, grouped by submission."""


class Manifest(NamedTuple):
    """The request for a job, or for several that are submitted together, in the backend's own
    format: a document, or a text that is complete by itself. `about` names the jobs in one line.
    It contains no secret's value."""

    about: str
    content: Mapping[str, object] | str


def _no_checks(options: Options) -> Iterable[Check]:
    del options
    return ()


def _no_leftovers(folder: str, over: Set[str], well: Set[str]) -> Iterable[Leftover]:
    del folder, over, well
    return ()


def _here(options: Options) -> Capabilities:
    del options
    return Capabilities()


def _over(defaults: Options, given: Options) -> dict[str, object]:
    return {**defaults, **given}


class BackendType(NamedTuple):
    """A backend's description of itself. Loading it must be cheap, so its functions import what is
    needed to run jobs.

    `open` takes the sweep's name, its folder (or URL) and the options. It raises
    `EnvironmentFailure` if something it needs is missing. `section` declares the options, which are
    in a grid's `launch.<name>` and in a table of the user's configuration file. `doc` describes the
    backend in one line. `by_run`: options may have `overrides` for runs with some values.
    `pins_gpus`: its options may have the `gpus` and `per_gpu` of `launch`, and its jobs get such
    devices.
    `records_defaults`: defaults from the configuration file are recorded with the plan, by `merge`;
    otherwise the backend reads them when it is opened (`configuration.defaults_of`). `capabilities`
    and `checks` take the options as a plan has them; `capabilities` raises `UsageError` if they are
    incomplete. `leftovers` takes a sweep's folder, the ids of its runs that are over, and the ids
    of those that succeeded. `manifests` returns the requests that submitting jobs would send,
    without querying the backend. It takes the arguments of `open` and the jobs, grouped by
    submission. None: its jobs have no format of their own.
    """

    name: str
    doc: str
    open: Callable[[str, str, Options], Backend]
    section: Section = _NOTHING
    by_run: bool = False
    pins_gpus: bool = False
    records_defaults: bool = True
    merge: Callable[[Options, Options], dict[str, object]] = _over
    capabilities: Callable[[Options], Capabilities] = _here
    checks: Callable[[Options], Iterable[Check]] = _no_checks
    leftovers: Callable[[str, Set[str], Set[str]], Iterable[Leftover]] = _no_leftovers
    manifests: Callable[[str, str, Options, Batches], Iterable[Manifest]] | None = None

    @property
    def key(self) -> str:
        """The name of its section in `launch` and in the configuration file."""
        return self.name.replace("-", "_")

    def field(self) -> Field | None:
        """Return its section as a field of `launch`, or None if it has no options."""
        if not (self.section.fields or self.by_run):
            return None
        return Field(self.key, Nested(self.section), self.doc)
