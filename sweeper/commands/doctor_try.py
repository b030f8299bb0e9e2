"""`sweeper doctor --try`: tests a backend end to end, from the launch to the files that a job
writes. The job takes one second, and is the only run of a temporary sweep."""

import fcntl
import gzip
import io
import json
import os
import tarfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import IO, NamedTuple, TypedDict

from sweeper import paths
from sweeper.backends import capabilities_at, open_places
from sweeper.common.interrupts import Interrupts
from sweeper.common.last_line import last_line
from sweeper.errors import EnvironmentFailure, NotFound, StoreError, SweeperError
from sweeper.launcher.launching import LaunchRequest, User, launch_plan
from sweeper.launcher.manifest import secret_names
from sweeper.recipe.reference import RunProcess, find_python, inspect
from sweeper.scheduler.failures import last_words
from sweeper.scheduler.progress import Summary
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.launch_settings import Launch
from sweeper.sweep.notify import Notify
from sweeper.sweep.plan import Plan, Run
from sweeper.sweep.requests import request_cancel
from sweeper.sweep.states import State
from sweeper.sweep.sweep_requests import ask_stop

_FILE = "trial.json"
_JOB = """
import json, os, sys, time
log_path, *names = sys.argv[1:]
time.sleep(1)
report = {"version": sys.version.split()[0], "files": os.listdir(".")}
report["set"] = [name for name in names if os.environ.get(name)]
with open(os.path.join(log_path, "trial.json"), "w") as file:
    json.dump(report, file)
"""
_STOP_SECONDS = 90.0
"""Seconds to wait for a cancelled job to stop."""


class TrialRequest(NamedTuple):
    """The settings to test: the name of the backend (`place`), the launch settings, the model
    service, and the names of the secrets that runs need."""

    place: str
    launch: Launch
    service: str
    secrets: Sequence[str]


class Step(NamedTuple):
    """A finished step of the test: name, duration in seconds (None: not measured), and result."""

    name: str
    seconds: float | None
    found: str


def try_out(request: TrialRequest, root: str, timeout: float, tell: Callable[[Step], None]) -> None:
    """Test a backend, and call `tell` with each finished step. First remove the sweeps of
    earlier tests that were killed. Cancel the job if it has not ended `timeout` seconds after
    its launch. Finally remove the test's sweep, unless the job cannot be stopped. SIGTERM and
    SIGHUP interrupt the test as Ctrl-C does. Raises `SweeperError` with the problem in one line."""
    with Interrupts() as interrupts:
        _remove_old(tell)
        plan = _plan(request)
        trial = _Trial(SweepFolder.open(root, plan.name), plan, timeout, tell)
        try:
            try:
                trial.note()
                trial.launch()
                trial.check()
            finally:
                interrupts.hold()
        except SweeperError as error:
            try:
                trial.remove()
            except SweeperError as failure:
                raise EnvironmentFailure(
                    f"{error}; also, the test's files and job were not removed: {failure}"
                ) from error
            raise
        except BaseException:  # such as an interrupt
            trial.remove()
            raise
        trial.remove()


class _Report(TypedDict):
    """The report of the job: its Python version, the files in its working directory, and the
    secrets that are set."""

    version: str
    files: list[str]
    set: list[str]


def _remove_old(tell: Callable[[Step], None]) -> None:
    """Remove the sweeps of earlier tests that were killed."""
    try:
        names = sorted(os.listdir(paths.trials()))
    except OSError:
        return
    for name in names:
        path = os.path.join(paths.trials(), name)
        with suppress(OSError, ValueError), open(path, encoding="utf-8") as note:
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
            root = note.read()
            if not root:  # Another process has just started this test.
                continue
            try:
                _remove(SweepFolder.open(root, name))
            except SweeperError as error:
                text = f"{name} in {root}, left by an earlier test, cannot be removed: {error}"
                tell(Step("left", None, text))
            else:
                os.unlink(path)
                tell(Step("removed", None, (f"{name} from {root}, left by an earlier test")))


def _remove(folder: SweepFolder) -> None:
    """Stop the job of a test. Remove the sweep and the backend's records of the job. Raises
    `EnvironmentFailure` if the job cannot be stopped."""
    from sweeper.launcher.control import cancel_runs
    from sweeper.results.annotations import clear, delete
    from sweeper.sweep.environment_file import env_file, forget
    from sweeper.sweep.lock import holding_sweep

    try:
        plan = folder.read_plan()
    except NotFound:  # Nothing was submitted.
        with holding_sweep(folder):
            clear(folder)
        forget(env_file(folder.address), folder.address)
        return
    run = plan.runs[0].id
    cancel_runs(folder, [run])
    attempts = max(1, folder.read_states()[run].opened)
    place = open_places(plan.launch, folder.name, folder.address)[plan.launch.backend]
    with suppress(EnvironmentFailure):  # The backend forgets the jobs later by itself.
        place.forget([token(run, number + 1) for number in range(attempts)])
    delete(folder.name, root=folder.store.root)


def _plan(request: TrialRequest) -> Plan:
    """Return a plan with one run, for the requested backend and launch settings."""
    launch = request.launch._replace(
        backend=request.place, backends=(), max_parallel=1, retries=0, timeout_s=None, window=None,
        window_panes=None, resume="never", metrics_dir=None, log_path_field=None, warm=False,
        priority=1.0,
    )  # fmt: skip
    names = list(dict.fromkeys(secret_names(request.secrets, request.service)))
    capabilities = capabilities_at(launch, request.place)
    python = find_python(launch.python) if capabilities.files else capabilities.python or "python"
    if launch.requirements is not None and not capabilities.files:
        python = "python"  # the first interpreter on PATH
    command = [python, "-c", _JOB.replace("{", "{{").replace("}", "}}"), "{log_path}", *names]
    recipe = inspect(command, [], RunProcess(launch.python, launch.cwd, launch.env)).recipe
    name = os.urandom(6).hex()
    return Plan(
        name=f"doctor-{name}",
        recipe=recipe,
        service="none",
        metric=None,
        secrets=tuple(names),
        launch=launch,
        axes={},
        runs=(Run(name, "trial", "trial", None, {}),),
        grid_text="",
        grid_path="",
        notify=Notify(on=()),
    )


class _Trial:
    """The steps of a test of a backend."""

    def __init__(
        self, folder: SweepFolder, plan: Plan, timeout: float, tell: Callable[[Step], None]
    ) -> None:
        self._folder = folder
        self._plan, self._timeout, self._tell = plan, timeout, tell
        self._run, self._place = plan.runs[0].id, plan.launch.backend
        self._seen: dict[State, float] = {}
        self._begun, self._attempt = 0.0, 1
        self._late = ""
        self._unreachable: str | None = None
        self._over = threading.Event()
        self._note: IO[str] | None = None

    def note(self) -> None:
        """Write a file with the root of the store that this test uses. Lock the file until this
        process ends. Raises `EnvironmentFailure`."""
        path = os.path.join(paths.trials(), self._plan.name)
        try:
            os.makedirs(paths.trials(), mode=0o700, exist_ok=True)
            self._note = open(path, "x", encoding="utf-8")  # noqa: SIM115 - until it is removed
            fcntl.flock(self._note, fcntl.LOCK_EX)
            self._note.write(self._folder.store.root)
            self._note.flush()
        except OSError as error:
            raise EnvironmentFailure(f"{path}: {error.strerror}") from error

    def launch(self) -> None:
        """Launch the job, and wait until it ends. Raises `EnvironmentFailure` if the job does
        not succeed."""
        self._begun = time.monotonic()
        limit = threading.Thread(target=self._limit, daemon=True)
        limit.start()
        try:
            user = User(notify=self._notify)
            launch_plan(LaunchRequest(self._plan, self._folder.store.root), user)
        finally:
            self._over.set()
            limit.join()
        ended = time.monotonic()
        folder = self._folder
        state = folder.read_states()[self._run]
        outcome = folder.read_outcome(self._run, state)
        self._attempt = max(1, state.opened)
        ran = outcome.wall_s or 0.0
        submitted = self._seen.get(State.SUBMITTED, self._begun)
        running = self._seen.get(State.RUNNING, max(submitted, ended - ran))
        if state.state is not State.SUCCEEDED:
            if self._late:
                raise EnvironmentFailure(self._late)
            why = [outcome.reason or state.state.value, outcome.detail or ""]
            if (line := self._last_line()) and line not in why[1]:
                why.append(f"its last output: {line}")
            raise EnvironmentFailure(f"{self._place}: {': '.join(filter(None, why))}")
        self._tell(Step("began", running - submitted, f"on {outcome.host}"))
        self._tell(Step("ran", ran, "succeeded"))
        self._tell(Step("known", max(0.0, ended - running - ran), "launcher sees the end"))

    def check(self) -> None:
        """Check the job's report. Raises `EnvironmentFailure` if the report is missing, or if
        the job lacks a secret or parts of the code."""
        folder, store = self._folder, self._folder.store
        path = f"{folder.log_path(self._run, self._attempt)}/{_FILE}"
        try:
            document: _Report = json.loads(store.read(path))
        except (NotFound, ValueError) as error:
            raise EnvironmentFailure(
                f"{self._place}: the store has no readable report of the job, {path} ({error})"
            ) from error
        written = f"has the files that the job wrote with Python {document['version']}"
        self._tell(Step("store", None, written))
        snapshot = folder.read_plan().snapshot
        if snapshot is None:
            self._tell(Step("code", None, "not sent, since there is no git checkout here"))
        else:
            lacks = _names(store.read(snapshot.archive), snapshot.cwd) - set(document["files"])
            if lacks:
                names = ", ".join(sorted(lacks)[:3])
                raise EnvironmentFailure(f"{self._place}: the job lacks parts of the code: {names}")
            self._tell(Step("code", None, f"the copy of {snapshot.root} arrived"))
        for name in self._plan.secrets:
            if name not in document["set"]:
                raise EnvironmentFailure(f"{self._place}: the secret {name} is empty in the job")
        if self._plan.secrets:
            self._tell(Step("secrets", None, f"set: {', '.join(self._plan.secrets)}"))

    def remove(self) -> None:
        """Remove the test's sweep and note file. Raises `EnvironmentFailure` if the sweep cannot
        be removed."""
        begun = time.monotonic()
        folder = self._folder
        recorded = folder.store.exists(folder.plan)
        # If the removal fails, the note remains, and the next test tries again.
        with self._note or nullcontext():
            _remove(folder)
            if self._note is not None:
                with suppress(OSError):
                    os.unlink(self._note.name)
        if recorded:
            place = f"{self._plan.name} from {folder.store.root}"
            self._tell(Step("removed", time.monotonic() - begun, place))

    def _notify(self, summary: Summary) -> None:
        self._unreachable = summary.unreachable
        now, before = time.monotonic(), len(self._seen)
        for state in (state for state, count in summary.counts.items() if count):
            if state is not State.PLANNED:
                self._seen.setdefault(state, now)
        # The job may have started already, so do not wait for the state "submitted".
        if self._seen and not before:
            self._tell(Step("submitted", now - self._begun, f"to {self._place}"))

    def _limit(self) -> None:
        """When the test's time is over, ask the launcher to cancel the job. If the job has still
        not ended after `_STOP_SECONDS`, also ask the launcher to end."""
        if self._over.wait(self._timeout):
            return
        fault = "has not ended" if State.RUNNING in self._seen else "has not started"
        self._late = f"{self._place}: the job {fault} after {self._timeout:g} s{self._waits_for()}"
        deadline = time.monotonic() + _STOP_SECONDS
        folder = self._folder
        while not self._over.wait(1.0):
            with suppress(NotFound, StoreError):
                folder.read_plan()  # Nothing can be cancelled before the plan exists.
                request_cancel(folder, self._run, folder.read_events().get(self._run, set()), 0)
                if time.monotonic() > deadline:
                    ask_stop(folder)

    def _waits_for(self) -> str:
        """Return `: ` and the reason why the job waits; "" if the launcher knows no reason."""
        why = self._unreachable
        with suppress(NotFound, StoreError):
            seen = self._folder.read_observations().observed.get(self._run)
            why = why or (seen and seen.reason)
        return f": {why}" if why else ""

    def _last_line(self) -> str:
        """Return the last line that the job printed, or ""."""
        folder = self._folder
        with suppress(NotFound, StoreError):
            return last_line(folder.store.read(folder.log(self._run, self._attempt)))
        with suppress(EnvironmentFailure):
            opened = open_places(self._plan.launch, folder.name, folder.address)
            return last_words(opened[self._place], token(self._run, self._attempt))
        return ""


def _names(archive: bytes, cwd: str) -> set[str]:
    """Return the names of files and folders in the folder `cwd` of a code archive."""
    top = "" if cwd == "." or os.path.isabs(cwd) else f"{cwd}/"
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive))) as tar:
        below = (name.removeprefix(top) for name in tar.getnames() if name.startswith(top))
        return {name.partition("/")[0] for name in below}
