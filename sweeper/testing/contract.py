"""Contract tests for backends, also for backends of other packages. Subclass `BackendContract` and
define a fixture `site` that yields a `Site`. Needs pytest. Tests of events that a site cannot cause
are skipped."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from sweeper.backends import capabilities_of, open_backend
from sweeper.backends.base import Backend, JobSpec, JobState, JobStatus
from sweeper.errors import Unreachable

__all__ = ["BackendContract", "Site"]

_JOB = """
import json, os, signal, subprocess, sys, time
folder, token = sys.argv[-2:]
place = os.path.join(folder, token)
def leave(kind, text=""):
    with open(place + ".tmp." + kind, "w") as file:
        file.write(text)
    os.rename(place + ".tmp." + kind, place + "." + kind)
def stop(number, frame):
    leave("told")
    until = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until and not os.path.exists(place + ".end"):
        time.sleep(0.02)
    leave("saved")
    os._exit(5)
child = None
if float(sys.argv[1]):
    signal.signal(signal.SIGTERM, stop)
    below = 'trap "touch $0.below" TERM; touch $0.child; while ! [ -e $0.end ]; do sleep 0.1; done'
    child = subprocess.Popen(["sh", "-c", below, place])
    while not os.path.exists(place + ".child"):
        time.sleep(0.02)
leave("place", json.dumps([os.getcwd(), "" if os.isatty(0) else sys.stdin.read()]))
leave("started", json.dumps(sys.argv[2:-2]))
while not os.path.exists(place + ".end"):
    time.sleep(0.02)
sys.exit(3)
"""
"""A job that reports its start and its arguments. It ends when the file TOKEN.end exists, or at
SIGTERM. After SIGTERM it first saves for the given number of seconds."""

_QUICK = """echo "$2" >> "$1/done" """
_SAVES_SECONDS = 4.0
"""Seconds in which a job saves, more than the 3 s after which some platforms would kill it."""
_KILLED = """
import json, os, sys
from sweeper.backends import open_backend
from sweeper.backends.base import JobSpec
name, folder = sys.argv[1:3]
job, options = map(json.loads, sys.argv[3:])
open_backend(name, "sweep", folder, options).submit([JobSpec(*job)])
os.kill(os.getpid(), 9)
"""
_HOSTILE = [
    *("$(touch pwned)", "; touch pwned", "a\nb", "a\\\n  b", "\n# c", "--flag", "'\"`\\"),
    *("#{pid} #S %H", "ä 本", ""),
]
_AT_WORK = (JobState.PENDING, JobState.RUNNING, JobState.STOPPING)
_NOTHING: Mapping[str, object] = {}
T = TypeVar("T")


@dataclass
class Site:
    """A backend under test, with its name and `options`, and the events that a test can cause.

    Jobs must be able to use `folder`. `opener` opens the backend for a sweep and its folder (None:
    use `open_backend`). `resources` are the resources of each job. The site can run `parallel` jobs
    at the same time, and the test of many jobs runs `many` jobs. `python` is the jobs' interpreter.
    Each wait lasts at most `seconds`. With `knows_codes`, the backend reports the exit codes of
    jobs.

    `hold`, `silence`, `preempt` and `lose_node` return a context manager that causes an event while
    its block runs (None: the site cannot cause this event). `hold` yields resources with which a
    job stays pending. `silence` keeps the platform from answering. `preempt` and `lose_node` get
    the backend's id of a job. `preempt` takes the job's machine away like a spot market, and
    `lose_node` like a power cut. In tests of these two events, jobs also get the resources
    `fragile`, so that the platform does not restart them.
    """

    name: str
    folder: Path
    options: Mapping[str, object] = field(default_factory=dict[str, object])
    opener: Callable[[str, str], Backend] | None = None
    resources: Mapping[str, object] = field(default_factory=dict[str, object])
    parallel: int = 16
    many: int = 300
    python: str = sys.executable
    seconds: float = 60.0
    knows_codes: bool = True
    hold: Callable[[], AbstractContextManager[Mapping[str, object]]] | None = None
    silence: Callable[[], AbstractContextManager[object]] | None = None
    preempt: Callable[[str], AbstractContextManager[object]] | None = None
    lose_node: Callable[[str], AbstractContextManager[object]] | None = None
    fragile: Mapping[str, object] = field(default_factory=dict[str, object])
    _submitted: dict[str, list[str]] = field(default_factory=dict[str, list[str]], init=False)

    def __enter__(self) -> "Site":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def place(self, sweep: str = "sweep") -> Path:
        """Return the folder of a sweep. Create the folder if it does not exist."""
        folder = self.folder / "root" / sweep
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def open(self, sweep: str = "sweep") -> Backend:
        """Open the backend again, as another launcher would."""
        where = str(self.place(sweep))
        if self.opener is not None:
            return self.opener(sweep, where)
        return open_backend(self.name, sweep, where, self.options)

    def job(
        self,
        token: str,
        *,
        sweep: str = "sweep",
        extra: Sequence[str] = (),
        saves: float = 0.0,
        resources: Mapping[str, object] = _NOTHING,
    ) -> JobSpec:
        """Return a job that runs until `finish` is called or the job is cancelled. After SIGTERM,
        the job saves for `saves` seconds before it ends. `extra` are arguments of the job."""
        where = str(self.place(sweep))
        self._submitted.setdefault(sweep, []).append(token)
        argv = [self.python, "-c", _JOB, str(saves), *extra, where, token]
        return JobSpec(token, f"lr=1e-4,#{token}", argv, where, {**self.resources, **resources})

    def quick(self, token: str) -> JobSpec:
        """Return a job that appends its token as a line to the file `done` and ends."""
        where = str(self.place())
        argv = ["/bin/sh", "-c", _QUICK, "sh", where, token]
        return JobSpec(token, token, argv, where, dict(self.resources))

    def mark(self, token: str, kind: str, sweep: str = "sweep") -> Path:
        """Return the path of a file that a job writes. `kind` is `started`, `place` (the file has
        the job's working folder and its standard input), `told` (the job got SIGTERM), `below` (a
        child process of the job got SIGTERM) or `saved`."""
        return self.place(sweep) / f"{token}.{kind}"

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition. Fail after `seconds`, with a message that contains `what`."""
        deadline = time.monotonic() + self.seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {self.seconds:g} s"
            time.sleep(0.02)

    def await_start(self, *tokens: str, sweep: str = "sweep") -> None:
        """Wait until the jobs have started."""
        for token in tokens:
            self.until(self.mark(token, "started", sweep).exists, f"{token} starts")

    def finish(self, *tokens: str, sweep: str = "sweep") -> None:
        """Make the jobs end. Jobs that have not started end at their start."""
        for token in tokens:
            self.mark(token, "end", sweep).touch()

    def end(self) -> None:
        """Make all jobs end, cancel those that are pending, and wait until all have ended."""
        for sweep, tokens in self._submitted.items():
            self.finish(*tokens, sweep=sweep)
            backend = self.open(sweep)
            with suppress(Unreachable):
                waiting = [t for t, s in backend.poll(tokens).items() if s.state is _AT_WORK[0]]
                backend.cancel(waiting)
            self.until(lambda b=backend, t=tokens: not _at_work(b, t), "the jobs end")


def _at_work(backend: Backend, tokens: Sequence[str]) -> set[str]:
    with suppress(Unreachable):
        return {t for t, s in backend.poll(tokens).items() if s.state in _AT_WORK}
    return {*tokens}


def _status(backend: Backend, token: str) -> JobStatus:
    return backend.poll([token])[token]


def _raises(act: Callable[[], object]) -> bool:
    try:
        act()
    except Unreachable:
        return True
    return False


def _needed(way: T | None, called: str) -> T:
    if way is None:
        pytest.skip(f"this site has no way to {called}")
    return way


class BackendContract:
    """The contract tests. Subclass it and define a fixture `site`."""

    def test_a_job_from_start_to_end(self, site: Site) -> None:
        backend, token = site.open(), "aaaaaaaaaaaa-a1"
        assert backend.find([token]) == {}
        backend.submit([site.job(token)])
        site.await_start(token)
        assert set(backend.find([token, "bbbbbbbbbbbb-a1"])) == {token}
        assert _status(backend, token).state is JobState.RUNNING
        site.finish(token)
        site.until(lambda: _status(backend, token).state is JobState.ENDED, "it ends")
        assert _status(backend, token).code == (3 if site.knows_codes else None)
        assert not _status(backend, token).preempted
        cwd, stdin = json.loads(site.mark(token, "place").read_text())
        assert stdin == ""
        # A container may start in another folder.
        if capabilities_of(site.name, site.options).files:
            assert cwd == str(site.place())

    def test_what_is_forgotten(self, site: Site) -> None:
        """After `forget`, an ended job is absent or ended, and a running job continues."""
        backend, over, going = site.open(), "acacacacacac-a1", "acacacacacad-a1"
        backend.submit([site.job(over), site.job(going)])
        site.await_start(over, going)
        site.finish(over)
        site.until(lambda: not _at_work(backend, [over]), "it has ended")
        backend.forget([over, going, "acacacacacae-a1"])
        backend = site.open()
        assert _status(backend, going).state is JobState.RUNNING
        assert not _at_work(backend, [over])

    def test_tokens_it_does_not_know_are_absent(self, site: Site) -> None:
        backend, token = site.open(), "cccccccccccc-a1"
        assert _status(backend, token).state is JobState.ABSENT
        assert backend.poll([]) == {}
        assert not backend.cancel([token])
        assert list(backend.logs(token)) == []

    def test_arguments_arrive_as_they_are(self, site: Site) -> None:
        token = "dddddddddddd-a1"
        site.open().submit([site.job(token, extra=_HOSTILE)])
        site.await_start(token)
        assert json.loads(site.mark(token, "started").read_text()) == _HOSTILE
        assert not list(site.folder.rglob("pwned"))
        assert not Path("pwned").exists()

    def test_another_launcher_finds_running_jobs(self, site: Site) -> None:
        tokens = [f"eeeeeeeeeee{index}-a2" for index in range(min(5, site.parallel))]
        site.open().submit([site.job(token) for token in tokens])
        site.await_start(*tokens)
        other = site.open()
        assert set(other.find(tokens)) == {*tokens}
        assert {status.state for status in other.poll(tokens).values()} == {JobState.RUNNING}

    def test_jobs_that_are_to_be_shown_together(self, site: Site) -> None:
        """Submit jobs with the same `window` in two calls, and also a job without a `window`. If
        `site.parallel` is at least 16, there are more jobs than a window shows."""
        backend = site.open()
        tokens = [f"ababababab{index:02d}-a1" for index in range(max(2, min(16, site.parallel)))]
        jobs = [site.job(token)._replace(window="lr=0.1: a.b") for token in tokens]
        backend.submit([*jobs[:-2], site.job("cdcdcdcdcdcd-a1")])
        backend.submit(jobs[-2:])
        site.finish("cdcdcdcdcdcd-a1")
        site.await_start(*tokens)
        assert set(backend.find(tokens)) == {*tokens}
        site.until(lambda: not backend.cancel(tokens[:1]), "it can be told")
        site.until(lambda: not _at_work(backend, tokens[:1]), "one is cancelled")
        states = {status.state for status in backend.poll(tokens[1:]).values()}
        assert states == {JobState.RUNNING}

    def test_the_same_run_in_another_sweep_is_another_job(self, site: Site) -> None:
        token = "ffffffffffff-a1"
        site.open("one").submit([site.job(token, sweep="one")])
        site.await_start(token, sweep="one")
        assert site.open("two").find([token]) == {}
        assert _status(site.open("two"), token).state is JobState.ABSENT

    def test_cancel_asks_the_worker_to_stop_and_gives_it_time(self, site: Site) -> None:
        """SIGTERM reaches the worker but not its children. The worker is not killed before it has
        saved."""
        backend, token = site.open(), "abababababab-a1"
        backend.submit([site.job(token, saves=_SAVES_SECONDS)])
        site.await_start(token)
        site.until(lambda: not backend.cancel([token]), "it can be told")
        site.until(site.mark(token, "told").exists, "it is told")
        state = _status(backend, token).state
        # If the test is slow, the job may already have saved and ended.
        over = state is JobState.ENDED and site.mark(token, "saved").exists()
        assert over or state in (JobState.RUNNING, JobState.STOPPING)
        site.until(lambda: not _at_work(backend, [token]), "it ends")
        assert site.mark(token, "saved").exists()
        assert not site.mark(token, "below").exists()

    def test_jobs_outlive_a_launcher_that_is_killed(self, site: Site) -> None:
        token, backend = "acacacacacac-a1", site.open()
        job = site.job(token)
        arguments = [job.cwd, json.dumps(job), json.dumps(site.options)]
        command = [sys.executable, "-c", _KILLED, site.name, *arguments]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        site.await_start(token)
        assert set(backend.find([token])) == {token}
        assert _status(backend, token).state is JobState.RUNNING

    def test_what_is_submitted_twice(self, site: Site) -> None:
        """Submit a job twice, as a launcher does after the reply to its first submission was lost.
        The backend may make one job or two. The backend reports the token while such a job exists,
        and cancelling the token stops all of these jobs."""
        backend, token = site.open(), "adadadadadad-a1"
        backend.submit([site.job(token)])
        site.await_start(token)
        with suppress(Unreachable):
            site.open().submit([site.job(token)])
        other = site.open()
        assert set(other.find([token])) == {token}
        assert _status(other, token).state is JobState.RUNNING

        def stopped() -> bool:
            other.cancel([token])
            return not _at_work(other, [token])

        site.until(stopped, "both are stopped")

    def test_what_waits_is_withdrawn(self, site: Site) -> None:
        backend, token = site.open(), "aeaeaeaeaeae-a1"
        hold = _needed(site.hold, "have a job wait")
        with hold() as resources:
            backend.submit([site.job(token, resources=resources)])
            site.until(lambda: _status(backend, token).state is JobState.PENDING, "it waits")
            assert set(site.open().find([token])) == {token}

            def withdrawn() -> bool:
                again = backend.cancel([token]) or ()
                assert {*again} <= {token}
                return not again

            site.until(withdrawn, "it can be withdrawn")
            site.until(lambda: not _at_work(backend, [token]), "it is withdrawn")
        time.sleep(1.0)
        assert not _at_work(site.open(), [token])
        assert not site.mark(token, "started").exists()

    def test_no_answer_is_no_statement(self, site: Site) -> None:
        backend, token = site.open(), "afafafafafaf-a1"
        silence = _needed(site.silence, "be out of reach")
        backend.submit([site.job(token)])
        site.await_start(token)
        with silence():
            site.until(lambda: _raises(lambda: backend.poll([token])), "it is out of reach")
            assert _raises(lambda: backend.find([token]))
            assert _raises(lambda: backend.cancel([token]))
            assert _raises(lambda: backend.submit([site.job("afafafafafaf-a2")]))
        site.until(lambda: not _raises(lambda: backend.poll([token])), "it is back")
        assert _status(backend, token).state is JobState.RUNNING

    def test_what_is_preempted(self, site: Site) -> None:
        self._taken(site, "babababababa-a1", _needed(site.preempt, "preempt a job"))

    def test_a_node_that_is_lost(self, site: Site) -> None:
        self._taken(site, "bcbcbcbcbcbc-a1", _needed(site.lose_node, "lose a node"))

    def _taken(
        self, site: Site, token: str, take: Callable[[str], AbstractContextManager[object]]
    ) -> None:
        backend = site.open()
        # The job saves for a long time, so that it does not end before the backend is asked.
        backend.submit([site.job(token, saves=3600.0, resources=site.fragile)])
        site.await_start(token)
        with take(backend.find([token])[token]):

            def over() -> bool:
                with suppress(Unreachable):
                    return _status(backend, token).state is JobState.ENDED
                return False

            site.until(over, "its end is known")
            assert _status(backend, token).preempted

    def test_many_jobs(self, site: Site) -> None:
        """Each job is executed exactly once."""
        backend = site.open()
        tokens = [f"{number:012x}-a1" for number in range(site.many)]
        pending, active = tokens, list[str]()
        while pending or active:
            room = site.parallel - len(active)
            starting, pending = pending[:room], pending[room:]
            if starting:
                backend.submit([site.quick(token) for token in starting])
            active = sorted(_at_work(backend, [*active, *starting]))
        lines = (site.place() / "done").read_text().split()
        assert Counter(lines) == Counter(tokens)
        assert not _at_work(site.open(), tokens[: site.parallel])
