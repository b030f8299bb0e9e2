"""The interface of backends. A `Backend` runs the jobs of one sweep. A `BackendType` describes a
kind of backend and opens it. A backend keeps no list of its jobs: it finds them by their tokens."""

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
"""A plan's options for a backend, as read from its section of `launch`."""
_NOTHING = Section()


class JobSpec(NamedTuple):
    """A job to start. `argv` is executed without a shell; its last element is `token`, the job's
    unique name. `title` is the name that people see. `resources` are the backend's options for this
    job, such as its memory. A backend that displays jobs shows up to `window_panes` jobs with the
    same text `window` together. When a job is stopped, its recipe has `grace_s` seconds to save."""

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
    STOPPING = "stopping"  # The job was asked to end, but may still have processes.
    ENDED = "ended"
    ABSENT = "absent"  # The backend answered that it does not know the job.


GONE = (JobState.ENDED, JobState.ABSENT)
"""The states of a job that no longer runs."""


class JobStatus(NamedTuple):
    """The status of a job. `code` (exit code) and `reason` are None if the backend does not know
    them; tmux knows neither. `preempted`: the job ended because its machine failed or was taken
    away, or because its queue suspended it. `node` is the job's current or last machine. `since` is
    when the job began to wait or to stop, in UTC (`2026-01-31T12:01:03Z`); None if unknown."""

    state: JobState
    code: int | None = None
    reason: str | None = None
    preempted: bool = False
    node: str | None = None
    since: str | None = None


class Backend(ABC):
    """A backend that is open for one sweep and runs its jobs.

    Every method raises `sweeper.errors.Unreachable` if the backend does not answer. Callers must
    never treat this error as the state ABSENT. Each backend implements the abstract methods, and
    may override the others.
    """

    name: str
    shows = False
    """Whether the backend displays its jobs to users. If so, `show` is called."""

    @abstractmethod
    def submit(self, jobs: Sequence[JobSpec]) -> None:
        """Start the jobs. Call `find` first if an earlier call may have started some of the jobs:
        `submit` could start them again."""

    @abstractmethod
    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        """Return a dict from token to the backend's own id of the job. Tokens whose job the backend
        does not know are left out."""

    @abstractmethod
    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        """Return the status of each token's job. One call may have any number of tokens."""

    @abstractmethod
    def cancel(self, tokens: Sequence[str]) -> Collection[str] | None:
        """Ask the jobs to stop: send SIGTERM to the workers of running jobs, and remove waiting
        jobs from the queue. Ignore unknown tokens. Return the tokens of jobs that cannot be stopped
        yet, because they are suspended or about to start (None: no such jobs). The caller later
        repeats the call for these tokens."""

    @abstractmethod
    def logs(self, token: str) -> Iterator[str]:
        """Yield the output lines that the backend itself stores for a job, if it stores any."""

    def preflight(self, resources: Sequence[Mapping[str, object]]) -> None:
        """Check that the backend would accept jobs with these resources. A launch calls this before
        it records anything. Raises `EnvironmentFailure` if the backend would never accept the
        jobs."""
        del resources

    def forget(self, tokens: Sequence[str]) -> None:
        """Remove the backend's records of the jobs of `tokens`. Jobs that have not ended are not
        affected."""
        del tokens

    def room(self, resources: Mapping[str, object] | None = None) -> int | None:
        """Return how many more jobs with the options `resources` (None: with the plan's options)
        can start now. The launcher submits at most this number of jobs. Return None if the backend
        accepts any number, as a queue does."""
        del resources
        return None

    def location(self) -> Mapping[str, str]:
        """Return a mapping, such as `{"cluster": "a"}`, that identifies the system where the
        backend's jobs run. For the same system, the mapping must never change."""
        return {}

    def show(self, status: str, words: Mapping[str, str]) -> None:
        """Display `status`, which is a line about the sweep. Also display labels for the sweep's
        jobs: `words` maps tokens to labels, such as `running`, `stale` or `paused: rate limit`, and
        contains only labels that have changed."""
        del status, words


class Counter(NamedTuple):
    """The environment variable in which a backend counts the restarts of a job. `first` is the
    variable's value at the first start."""

    variable: str
    first: int = 0


class Capabilities(NamedTuple):
    """The capabilities of a backend's jobs. The defaults describe jobs that run on this machine, as
    this user.

    `here`: jobs run on this machine, so they reach the engine (the local model service) over
    loopback. `files`: jobs see the folders of this machine, such as a local store and a checkout.
    `python`: the interpreter for the worker and the recipe (None: the current one). `secrets`: the
    secret variables that the backend itself passes to its jobs. `restarts`: the variable that
    counts the restarts of a job by the backend (None: the backend restarts no jobs; see
    `sweeper/worker/claim.py`). `credentials`: the variables with which the launcher logs in to the
    backend. Runs get these variables only if their grid names them in `secrets:`.
    """

    here: bool = True
    files: bool = True
    python: str | None = None
    secrets: frozenset[str] = frozenset()
    restarts: Counter | None = None
    credentials: tuple[str, ...] = ()


class Check(NamedTuple):
    """A check of `doctor`. `run` makes the check and returns the result as text, or raises
    `SweeperError` or `LookupError` with the problem. `needed`: a launch requires that the check
    succeeds."""

    name: str
    needed: bool
    run: Callable[[], str]


def require(checks: Iterable[Check], backend: str) -> None:
    """Run the checks that a launch requires. Raises the error of the first failed check, and
    `EnvironmentFailure` instead of a `LookupError`."""
    for check in checks:
        if check.needed:
            try:
                check.run()
            except LookupError as error:
                raise EnvironmentFailure(f"{backend}: {error}") from error


class Leftover(NamedTuple):
    """Files that are no longer needed, for the reason `why`, and that are removed together. If the
    store is remote, `paths` are URLs. `release` (if not None) is called with `paths` before the
    removal. If `release` raises `EnvironmentFailure`, the files stay."""

    paths: Sequence[str]
    why: str
    release: Callable[[Sequence[str]], None] | None = None


Batches = Sequence[Sequence[JobSpec]]
"""Jobs, grouped by submission."""


class Manifest(NamedTuple):
    """A preview of one submission: the document or the text that the backend would send. `about`
    names the jobs in one line. The preview contains no values of secrets."""

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


def _over(defaults: Options, later: Options) -> dict[str, object]:
    return {**defaults, **later}


class BackendType(NamedTuple):
    """The description of a backend. Its module must load quickly, so the functions of a description
    import the backend's code only when they are called.

    `doc` describes the backend in one line. `open` takes the sweep's name, the sweep's folder (or
    URL) and the options. `open` raises `EnvironmentFailure` if the backend cannot be used.
    `section` declares the options. Users set options in a grid (`launch.<key>`) and in the table
    `<key>` of their configuration file. `by_run`: the option `overrides` sets options for some
    runs. `pins_gpus`: the options may contain `gpus` and `per_gpu`, which users set in `launch`
    itself. `records_defaults`: plans contain the user's defaults from the configuration file. If
    False, the backend reads the defaults when it is opened (`configuration.configured`). `merge`
    combines two mappings of options, such as the defaults and those of a grid. The second takes
    precedence. `capabilities` and `checks` take the options of a plan; `capabilities`
    raises `UsageError` for incomplete options. `leftovers` takes a sweep's folder, the ids of its
    ended runs, and the ids of its succeeded runs. `manifests` takes the arguments of `open` and the
    jobs, grouped by submission, and returns a preview of each submission without querying the
    backend. If `manifests` is None, the backend has no previews.
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
        """The key of the backend's section in `launch` and in the configuration file."""
        return self.name.replace("-", "_")

    def field(self) -> Field | None:
        """Return the backend's section as a field of `launch`; None if the backend has no
        options."""
        if not (self.section.fields or self.by_run):
            return None
        return Field(self.key, Nested(self.section), self.doc)
