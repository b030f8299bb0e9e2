"""What a backend is, and what it says of itself. Nothing else is known of where jobs execute.

`BackendType` is the description, which loads nothing: its fields, what its jobs can do, how it is
opened and looked at. `Backend` is one at work for a sweep. It starts jobs, says what has become of
them, and stops them. It holds no state of its own: after a restart it finds its jobs by their
tokens, wherever the jobs themselves are recorded (the process table, a tmux server, a scheduler's
queue)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from typing import NamedTuple

from sweeper.errors import EnvironmentFailure
from sweeper.fields.sections import Field, Nested, Section

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
"""What a plan says to a backend: its section of `launch`, as the document has it."""
_NOTHING = Section()


class JobSpec(NamedTuple):
    """A job to start. `argv` is executed as it stands, never by a shell; its last element is the
    token. `title` is for people; `resources` holds what a scheduler may want to know (unused by
    local and tmux). Jobs with the same `window` are to be shown together, where there is something
    to be seen. Of what is to stop, the recipe has `grace_s` seconds to save."""

    token: str
    title: str
    argv: Sequence[str]
    cwd: str
    resources: Mapping[str, object]
    window: str | None = None
    grace_s: float = 30.0


class JobState(Enum):
    """What a backend knows of a job."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"  # it was told to end, by whomever, and may have processes yet
    ENDED = "ended"
    ABSENT = "absent"  # the backend answered, and knows no such job


class JobStatus(NamedTuple):
    """`code` and `reason` only where the backend itself knows them (never so for tmux).
    `preempted`: it ended because its machine was taken away or failed, not because of the run.
    `node` is the machine that it is, or was, on; `since` when it began to wait or to stop, in UTC
    (`2026-01-31T12:01:03Z`), where it does that."""

    state: JobState
    code: int | None = None
    reason: str | None = None
    preempted: bool = False
    node: str | None = None
    since: str | None = None


class Backend(ABC):
    """Where jobs execute.

    Every method raises `sweeper.errors.Unreachable` when the backend does not answer, which is
    never to be mistaken for ABSENT. The first five have to be there; of the others a backend has
    those that mean something to it.
    """

    name: str
    shows = False
    """Whether people look at its jobs, so that `show` is worth calling."""

    @abstractmethod
    def submit(self, jobs: Sequence[JobSpec]) -> None:
        """Start the jobs. Not idempotent by itself: ask `find` first when in doubt."""

    @abstractmethod
    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        """Token -> the backend's own id, for those of `tokens` that it has ever accepted and
        still remembers."""

    @abstractmethod
    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        """The status of every one of `tokens`, in one call however many."""

    @abstractmethod
    def cancel(self, tokens: Sequence[str]) -> Collection[str] | None:
        """Ask the jobs to stop: SIGTERM to the worker of what runs; what waits is withdrawn. Tokens
        it does not know are passed over. Returns those that it cannot stop yet (suspended, about to
        begin): it is asked for them again. None: it has done it for all."""

    @abstractmethod
    def logs(self, token: str) -> Iterator[str]:
        """Lines that the backend itself kept of a job; none where it keeps nothing."""

    def preflight(self, asked: Sequence[Mapping[str, object]]) -> None:
        """See that it would take jobs with these resources, before anything is on record. Raises
        `EnvironmentFailure` where it never will."""
        del asked

    def forget(self, tokens: Sequence[str]) -> None:
        """Remove what is kept of these jobs, of those that have ended and where that can be done:
        nobody will ask for them again."""
        del tokens

    def location(self) -> Mapping[str, str]:
        """What tells the place where its jobs wait from others of its kind (`{"cluster": "a"}`),
        and stays the same."""
        return {}

    def show(self, status: str, words: Mapping[str, str]) -> None:
        """Show a line on how the sweep stands, and beside jobs (by token) a word on how they do:
        a state, `stale`, `paused: <why>`. Called when something has changed, with that alone."""
        del status, words


class Counter(NamedTuple):
    """A variable in which a job finds how often its backend has started it again; `first` is what
    it says the first time."""

    variable: str
    first: int = 0


class Capabilities(NamedTuple):
    """What jobs of a backend can do. As it stands: they run on this machine, as this user.

    `here`: on this machine, so that they reach the engine over loopback. `files`: with the folders
    of this machine, so that a root, a checkout and the private file with the runs' environment are
    theirs too. `python`: the interpreter that executes the worker and the recipe (None: as here).
    `secrets`: the names of those that the backend hands to its jobs by itself. `restarts`: where it
    counts for a job how often it has started it again by itself (None: it never does; see
    `sweeper/worker/requeue.py`). `credentials`: the variables by which the launcher reaches the
    backend, which runs do not get unless their grid names one in `secrets:`.
    """

    here: bool = True
    files: bool = True
    python: str | None = None
    secrets: frozenset[str] = frozenset()
    restarts: Counter | None = None
    credentials: tuple[str, ...] = ()


class Check(NamedTuple):
    """What `doctor` looks at. `look` says what it found, or raises `SweeperError` or `LookupError`
    with what is wrong; `needed`: a launch cannot do without."""

    name: str
    needed: bool
    look: Callable[[], str]


def require(checks: Iterable[Check], backend: str) -> None:
    """Look at what a launch cannot do without. Raises `EnvironmentFailure` for the first that is
    not there, with the backend's name before what is wrong."""
    for check in checks:
        if check.needed:
            try:
                check.look()
            except LookupError as error:
                raise EnvironmentFailure(f"{backend}: {error}") from error


class Leftover(NamedTuple):
    """Files that belong together and that nobody needs any more, and why."""

    paths: Sequence[str]
    why: str


Batches = Sequence[Sequence[JobSpec]]
"""Jobs, those together that are submitted at once."""


class Manifest(NamedTuple):
    """What a backend would be given for a job, or for several that go together, in its own format:
    a document, or a text that is complete by itself. `about` says in a line whose it is. It holds
    no secret's value."""

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
    """A backend's description of itself. Loading it must be cheap: what it takes to run jobs is
    imported by the functions.

    `open` takes the sweep's name, its folder (or URL) and the options, and raises
    `EnvironmentFailure` where what it needs is missing. `section` declares its options, which are a
    grid's `launch.<name>` and a table of the user's configuration file; `doc` says what it is in
    one line. `by_run`: options may have `overrides`, for runs with some values. `records_defaults`:
    those of the configuration file are put on record with the plan, by `merge`; else the backend
    reads them when it is opened (`configuration.defaults_of`). `capabilities` and `checks` take the
    options as a plan has them; the former raises `UsageError` where they lack something.
    `leftovers` takes a sweep's folder, the ids of its runs that are over, and of those that ended
    well. `manifests` gives what submitting jobs would hand in; it takes what `open` does, and the
    jobs, those together that are submitted at once, and asks the backend for nothing. None: its
    jobs have no format of their own."""

    name: str
    doc: str
    open: Callable[[str, str, Options], Backend]
    section: Section = _NOTHING
    by_run: bool = False
    records_defaults: bool = True
    merge: Callable[[Options, Options], dict[str, object]] = _over
    capabilities: Callable[[Options], Capabilities] = _here
    checks: Callable[[Options], Iterable[Check]] = _no_checks
    leftovers: Callable[[str, Set[str], Set[str]], Iterable[Leftover]] = _no_leftovers
    manifests: Callable[[str, str, Options, Batches], Iterable[Manifest]] | None = None

    @property
    def key(self) -> str:
        """What its section is called in `launch`, and in the configuration file."""
        return self.name.replace("-", "_")

    def field(self) -> Field | None:
        """Its section as a field of `launch`; None for one without options."""
        if not (self.section.fields or self.by_run):
            return None
        return Field(self.key, Nested(self.section), self.doc)
