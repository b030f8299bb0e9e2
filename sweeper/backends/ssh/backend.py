"""Runs jobs on machines reached by SSH, each with a number of slots. The host of a job is recorded
in the sweep's folder before the job starts. Jobs of a host that does not answer are never reported
as ended."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import NamedTuple, TypeVar

from sweeper.backends.base import Backend, JobSpec, JobState, JobStatus, Leftover
from sweeper.backends.ssh.connection import Connection, secret_values
from sweeper.backends.ssh.options import Options
from sweeper.common.json_values import list_of, table_of
from sweeper.errors import (
    EnvironmentFailure,
    NoRoom,
    NotFound,
    StoreError,
    Unreachable,
    UsageError,
)
from sweeper.store.documents import encode, read_as
from sweeper.store.shared import open_shared
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.labels import plural

T = TypeVar("T")
_BUSY_SECONDS = 2.0
"""Seconds that a host's number of jobs stays valid."""
_ABREAST = 16
_HOSTS = "launcher/hosts"
"""The folder, in a sweep's folder, that records the host of each job."""


class _Count(NamedTuple):
    """The number of jobs on a host, at a monotonic time."""

    jobs: int
    at: float


class SshBackend(Backend):
    """A backend (see `sweeper.backends.base.Backend`). `capacity` is the largest number of
    parallel jobs on each host."""

    name = "ssh"

    def __init__(
        self, folder: str, options: Options, capacity: Mapping[str, int], python: str
    ) -> None:
        self._folder = SweepFolder.at_address(folder)
        self._options, self._capacity, self._python = options, capacity, python
        self._sweep = sha256(folder.encode()).hexdigest()[:24]
        self._connections: dict[str, Connection] = {}
        self._hosts: dict[str, str] = {}  # by token
        self._busy: dict[str, _Count] = {}

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        environment = secret_values(self._options.secrets, os.environ)
        remaining = {job.token: job for job in jobs}
        problems: list[EnvironmentFailure] = []
        placed = self._recorded(remaining)
        for _ in range(2):  # A host may have filled up meanwhile; then try others.
            for token in remaining.keys() - placed.keys():
                if (host := self._free_host(placed)) is not None:
                    placed[token] = host
                    self._record(token, host)
            chosen = {t: h for t, h in placed.items() if t in remaining}
            for host, tokens in _by_host(chosen).items():
                try:
                    full = self._start(host, [remaining[token] for token in tokens], environment)
                except EnvironmentFailure as error:
                    problems.append(error)
                    full = list(tokens)
                    self._busy[host] = _Count(self._capacity.get(host, 0), time.monotonic())
                for token in tokens:
                    if token not in full:
                        del remaining[token]
                    elif not problems:
                        del placed[token]
            if not remaining or problems:
                break
        if problems:
            raise sorted(problems, key=lambda error: isinstance(error, Unreachable))[0]
        if remaining:
            raise NoRoom(
                f"ssh: all slots are in use: {plural(len(remaining), 'job waits', 'jobs wait')} "
                "for a free slot"
            )

    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        places: dict[str, str] = {}
        for host, states in self._look(tokens, every=True).items():
            places |= {token: f"{host}:{state}" for token, state in states.items()}
        return places

    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        hosts = self._recorded(tokens)
        states: dict[str, object] = {}
        looks = self._look(tokens, every=False)
        for seen in looks.values():
            states |= seen
        statuses: dict[str, JobStatus] = {}
        for token in tokens:
            host = hosts.get(token)
            if host is not None and host not in looks:
                why = f"{host} does not answer"
                statuses[token] = JobStatus(JobState.RUNNING, reason=why, node=host)
            else:
                statuses[token] = _status(states.get(token), host)
        return statuses

    def cancel(self, tokens: Sequence[str]) -> None:
        self._each(
            _by_host(self._recorded(tokens)),
            lambda host, jobs_there: self._ask(host, "cancel", tokens=list(jobs_there)),
            every=True,
        )

    def logs(self, token: str) -> Iterator[str]:
        host = self._recorded([token]).get(token)
        if host is None:
            return iter(())
        text = self._ask(host, "log", tokens=[token]).get("log")
        return iter(str(text or "").splitlines())

    def forget(self, tokens: Sequence[str]) -> None:
        self._each(
            _by_host(self._recorded(tokens)),
            lambda host, jobs_there: self._ask(host, "forget", tokens=list(jobs_there)),
            every=True,
        )

    def preflight(self, resources: Sequence[Mapping[str, object]]) -> None:
        del resources
        secret_values(self._options.secrets, os.environ)
        if not self._counts(age=_BUSY_SECONDS):
            self._each(dict.fromkeys(self._capacity, ()), self._count, every=True)

    def room(self, resources: Mapping[str, object] | None = None) -> int:
        del resources  # All jobs need the same resources.
        counts = self._counts(age=_BUSY_SECONDS)
        return sum(max(0, self._capacity[host] - jobs) for host, jobs in counts.items())

    def check(self) -> str:
        """Return the hosts, with their versions of Python and their slots, as text. Raises
        `EnvironmentFailure` if a host does not answer or refuses."""
        answers = self._each(dict.fromkeys(self._capacity, ()), self._count, every=True)
        return ", ".join(
            f"{host} (Python {answer.get('python')}, {self._busy[host].jobs} of "
            f"{self._capacity[host]} slots in use)"
            for host, answer in answers.items()
        )

    def _start(
        self, host: str, jobs: Sequence[JobSpec], environment: Mapping[str, str]
    ) -> list[str]:
        """Start jobs on a host. Return the tokens of the jobs that got no slot."""
        makes = not self._options.shared
        described = [
            {
                "token": job.token,
                "argv": list(job.argv),
                "cwd": job.cwd,
                "env": dict(environment),
                "makes": makes,
            }
            for job in jobs
        ]
        answer = self._ask(host, "start", jobs=described, slots=self._capacity.get(host, 0))
        return [str(token) for token in list_of(answer.get("left"))]

    def _look(self, tokens: Sequence[str], *, every: bool) -> dict[str, dict[str, object]]:
        """Return {host: {token: state}}. With `every`, raise the error of a host that does not
        answer or refuses. Without `every`, leave out such hosts, and raise an error only if all
        hosts fail."""
        answers = self._each(
            _by_host(self._recorded(tokens)),
            lambda host, jobs_there: self._ask(host, "states", tokens=list(jobs_there)),
            every=every,
        )
        return {host: dict(table_of(answer.get("states"))) for host, answer in answers.items()}

    def _each(
        self,
        hosts: Mapping[str, Sequence[str]],
        ask: Callable[[str, Sequence[str]], T],
        *,
        every: bool,
    ) -> dict[str, T]:
        """Call `ask` for each host, in parallel. Return {host: answer}. Handle failed hosts as
        `_look` does."""
        if not hosts:
            return {}
        failures: list[EnvironmentFailure] = []

        def attempt(item: tuple[str, Sequence[str]]) -> tuple[str, T] | None:
            try:
                return item[0], ask(*item)
            except EnvironmentFailure as error:
                failures.append(error)
                return None

        with ThreadPoolExecutor(min(_ABREAST, len(hosts))) as pool:
            answers = dict(filter(None, pool.map(attempt, hosts.items())))
        if failures and (every or not answers):
            raise failures[0]
        return answers

    def _ask(self, host: str, do: str, **about: object) -> dict[str, object]:
        connection = self._connections.get(host)
        if connection is None:
            options = self._options
            connection = self._connections[host] = Connection(
                host, self._python, options.config, options.folder, self._sweep
            )
        answer = connection.ask(do, **about)
        busy = answer.get("busy")
        self._busy[host] = _Count(busy if isinstance(busy, int) else 0, time.monotonic())
        return answer

    def _count(self, host: str, _: Sequence[str]) -> dict[str, object]:
        return self._ask(host, "states", tokens=[])

    def _counts(self, age: float) -> dict[str, int]:
        """Return the number of jobs on each host that answers. The numbers are at most `age`
        seconds old."""
        since = time.monotonic() - age
        old = [
            host for host in self._capacity if host not in self._busy or self._busy[host].at < since
        ]
        try:
            answered = self._each(dict.fromkeys(old, ()), self._count, every=False)
        except EnvironmentFailure:
            answered = {}
        away = set(old) - answered.keys()
        return {host: self._busy[host].jobs for host in self._capacity if host not in away}

    def _free_host(self, placed: Mapping[str, str]) -> str | None:
        """Return the host with the most free slots; None if no slot is free. Each job in `placed`
        counts as occupying a slot of its host."""
        counts = self._counts(age=_BUSY_SECONDS)
        taken = list(placed.values())
        free = {h: self._capacity[h] - jobs - taken.count(h) for h, jobs in counts.items()}
        best = max(free, key=lambda host: free[host], default=None)
        return best if best is not None and free[best] > 0 else None

    def _record(self, token: str, host: str) -> None:
        self._folder.store.replace(self._path(token), encode({"schema": 1, "host": host}))
        self._hosts[token] = host

    def _recorded(self, tokens: Iterable[str]) -> dict[str, str]:
        """Return {token: host} for the tokens whose host is recorded."""
        for token in tokens:
            if token not in self._hosts:
                try:
                    self._hosts[token] = read_as(self._folder.store, self._path(token), _host_of)
                except NotFound:
                    continue
        return {token: self._hosts[token] for token in tokens if token in self._hosts}

    def _path(self, token: str) -> str:
        return f"{self._folder.name}/{_HOSTS}/{token}.json"


def leftovers(
    folder: str, well: Set[str], open_backend: Callable[[str, str, Mapping[str, object]], Backend]
) -> Iterator[Leftover]:
    """Yield the files that record on which host a job ran, for the runs in `well` (ids of succeeded
    runs). Before a file is removed, the host is asked to forget the job. If the host does not
    answer, the file stays."""
    root, _, name = folder.rpartition("/")
    # Few sweeps have such files, so look for them without loading the store's client.
    sweep = SweepFolder(open_shared(root), name)
    tokens = _tokens(sweep.store.names(f"{sweep.name}/{_HOSTS}"))
    tokens = [token for token in tokens if token.rpartition("-a")[0] in well]
    if not tokens:
        return
    try:
        options = sweep.read_plan().launch.options.get("ssh", {})
        backend = open_backend(sweep.name, folder, options)
    except (NotFound, StoreError, UsageError):
        return  # The hosts' addresses are unknown.
    releases: dict[str, Callable[[Sequence[str]], None]] = {}
    for token in tokens:
        inside = f"{_HOSTS}/{token}.json"
        host = read_as(sweep.store, f"{sweep.name}/{inside}", _host_of)
        release = releases.setdefault(host, lambda paths: backend.forget(_tokens(paths)))
        why = f"record of a job on {host} whose run succeeded"
        yield Leftover([f"{sweep.address}/{inside}"], why, release)


def _tokens(paths: Iterable[str]) -> list[str]:
    return [path.rpartition("/")[2].removesuffix(".json") for path in paths]


def _host_of(document: object, place: str) -> str:
    del place
    return str(table_of(document).get("host", ""))


def _by_host(hosts: Mapping[str, str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for token, host in hosts.items():
        grouped.setdefault(host, []).append(token)
    return grouped


def _status(state: object, host: str | None) -> JobStatus:
    if isinstance(state, int):
        return JobStatus(JobState.RUNNING, node=host)
    if state == "lost":  # the machine was restarted
        return JobStatus(JobState.ENDED, reason="node", preempted=True, node=host)
    return JobStatus(JobState.ABSENT if state is None else JobState.ENDED, node=host)
