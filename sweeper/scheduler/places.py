"""The places of a sweep, which are the backends that its plan may use. This module finds the place
of each attempt, chooses the places of the next attempts, and withdraws attempts from a place that
keeps them waiting. An attempt's intent names its place."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias, TypeVar

from sweeper.backends import capabilities_at, options_of
from sweeper.backends.base import GONE, Backend, JobSpec
from sweeper.common.logs import Log
from sweeper.errors import (
    Damaged,
    EnvironmentFailure,
    NoRoom,
    StoreError,
    SweeperError,
    Unreachable,
)
from sweeper.scheduler.context import Context
from sweeper.scheduler.failures import FailurePolicy
from sweeper.sweep.folder import token
from sweeper.sweep.launch_settings import Launch
from sweeper.sweep.run_table import RunTable
from sweeper.sweep.states import Event, State

_LOG = Log(__name__)

TryCall: TypeAlias = Callable[[Callable[[], None]], bool]
"""A function that calls its argument, a query of a backend, and returns whether the backend
answered."""

T = TypeVar("T")
_REFUSED_SECONDS = 15.0, 300.0
"""The first and the longest wait, in seconds, before a place that refused a job is tried again.
Each refusal doubles the wait."""
_AGAIN = (State.PREEMPTED, State.LOST)
"""After an attempt in one of these states, a run moves to the next place if there is room."""


class Places:
    """The places of one sweep: its backends, in the order in which they get jobs. `backends` is a
    dict from the name of each place to its backend."""

    def __init__(self, context: Context, run_table: RunTable) -> None:
        self._folder, self._clock = context.folder, context.clock
        self._run_table = run_table
        self._patience_s = context.plan.launch.lease_s
        self._most = {share.backend: share.max_parallel for share in context.plan.launch.shares}
        self.backends = context.backends
        self.names = tuple(self.backends)
        self.several = len(self.names) > 1
        self.crowded: set[str] = set()
        """Places that have room for fewer jobs than may run, as of the last check."""
        self._at: dict[tuple[str, int], str] = {}
        self.damaged: dict[str, str] = {}
        """Run -> error, for the runs whose recorded place is damaged. It is cleared in each
        step."""
        self._silent_since: dict[str, float] = {}  # when a place stopped answering
        self._refusals: dict[str, int] = {}  # how often in a row a place refused jobs
        self._until: dict[str, float] = {}
        self._full: set[str] = set()  # places that refused a job when last asked
        self._closed: dict[str, EnvironmentFailure] = {}  # places that will never accept a job
        launch = context.plan.launch
        self._here = [place for place in self.names if capabilities_at(launch, place).here]
        self._gone: set[str] = set()

    def at(self, run: str, attempt: int) -> str | None:
        """Return the place (backend) that is recorded in an attempt's intent, the event before its
        submission. Return the first place if none is recorded (see `placement_guard.py`), or if the
        grid no longer has the recorded place. If the intent is damaged, add the error to `damaged`
        and return None. Raises `StoreError`."""
        if not self.several:
            return self.names[0]
        place = self._at.get((run, attempt))
        if place is None:
            try:
                place = self._folder.place_of(run, attempt)
            except Damaged as error:
                self.damaged[run] = str(error)
                return None
            place = place if place in self.names else self.names[0]
            self._at[run, attempt] = place
        return place

    def of_each(self, attempts: Mapping[str, int]) -> dict[str, dict[str, str]]:
        """Group these attempts (a dict from run to attempt) by place. Return a dict from place to
        {token: run}. Leave out attempts with a damaged intent."""
        jobs: dict[str, dict[str, str]] = {place: {} for place in self.names}
        for run, attempt in attempts.items():
            place = self.at(run, attempt)
            if place is not None:
                jobs[place][token(run, attempt)] = run
        return jobs

    def ask(self, place: str, question: Callable[[Backend], T]) -> T:
        """Query the backend of a place. Raises `Unreachable` if it does not answer. If the sweep
        has several places, a backend that cannot be opened also counts as unreachable."""
        try:
            answer = self._put(place, question)
        except Unreachable:
            self._silent_since.setdefault(place, self._clock())
            raise
        self._silent_since.pop(place, None)
        return answer

    def _put(self, place: str, question: Callable[[Backend], T]) -> T:
        """Query the backend like `ask`, without recording whether it answered."""
        try:
            return question(self.backends[place])
        except (StoreError, Unreachable):
            raise
        except EnvironmentFailure as error:
            if not self.several:
                raise
            raise Unreachable(str(error)) from error

    def look_where_nothing_is(self, place: str) -> None:
        """Poll a place that has no running attempts, so that its backend can forget ended jobs. A
        place that did not answer the last query may also get a query about an arbitrary job, to
        learn whether the place answers again. Raises `Unreachable` if there is no answer."""
        try:
            self._put(place, lambda backend: backend.poll([]))
        except Unreachable:  # treat it like a place that could not be opened
            self._silent_since.setdefault(place, self._clock())
            raise
        unknown = self.of_each(self._run_table.unacknowledged())[place]
        if self.several and not unknown and not self.is_reached(place):
            job = token(next(iter(self._run_table.runs)), 1)
            self.ask(place, lambda backend: backend.find([job]))

    def has_ended(self) -> bool:
        """Return whether a job of this machine has ended since the last call. Local backends that
        do not answer are ignored."""
        opened = self.of_each(self._run_table.open())
        gone: set[str] = set()
        for place in self._here:
            jobs = list(opened[place])
            with suppress(SweeperError):
                statuses = self._put(place, lambda backend, jobs=jobs: backend.poll(jobs))
                gone |= {job for job, status in statuses.items() if status.state in GONE}
        new, self._gone = gone - self._gone, gone
        return bool(new)

    def is_reached(self, place: str) -> bool:
        """Return whether the place answered the last query."""
        return place not in self._silent_since

    def submit(self, place: str, jobs: Sequence[JobSpec]) -> None:
        """Submit jobs to a place. If the sweep has several places, a place that will never accept
        the jobs is closed, and gets no more jobs."""
        try:
            self.backends[place].submit(jobs)
        except EnvironmentFailure as error:
            if not self.several or isinstance(error, StoreError):
                raise
            self._refuse(place)
            if isinstance(error, NoRoom):
                self._full.add(place)
            else:
                self._full.discard(place)
            if not isinstance(error, Unreachable):
                self._closed[place] = error
                if len(self._closed) == len(self.names):
                    raise
                raise Unreachable(str(error)) from error
            raise
        self._refusals.pop(place, None)
        self._until.pop(place, None)
        self._full.discard(place)

    def _refuse(self, place: str) -> None:
        times = self._refusals.get(place, 0)
        self._refusals[place] = times + 1
        first, most = _REFUSED_SECONDS
        self._until[place] = self._clock() + min(most, first * 2.0 ** min(times, 9))

    def takes(self, place: str) -> bool:
        """Return whether jobs may be submitted to a place now. A closed place accepts none, and a
        place that has refused a job accepts none for a while."""
        return place not in self._closed and self._clock() >= self._until.get(place, 0.0)

    def room(self, unsubmitted: Collection[str]) -> dict[str, int]:
        """Return how many more jobs each place may get. `unsubmitted` are the runs whose newest
        recorded attempt has no job. A place that refused the last job may get at most one."""
        opened, unknown = self._run_table.open(), self._run_table.unacknowledged()
        everywhere = len(self._run_table.runs)
        if not self.several:
            return {self.names[0]: self._fitting(self.names[0], everywhere)}
        unsure = [(run, n) for run, n in unknown.items() if run not in unsubmitted]
        busy = Counter(self.at(run, n) for run, n in (*opened.items(), *unsure))
        rooms: dict[str, int] = {}
        for place, most in self._most.items():
            # An attempt whose place is unknown may be at any of them.
            free = (everywhere if most is None else most) - busy[place] - busy[None]
            free = min(free, 1) if place in self._refusals else free
            usable = self.takes(place) and self.is_reached(place)
            rooms[place] = self._fitting(place, max(0, free)) if usable else 0
        return rooms

    def room_for(self, launch: Launch) -> int | None:
        """Return how many more jobs with the settings of `launch` can start now at the places
        that answer, or None if one of these places has no limit."""
        rooms: list[int] = []
        for place, backend in self.backends.items():
            with suppress(Unreachable):
                room = backend.room(options_of(launch, place))
                if room is None:
                    return None
                rooms.append(room)
        return sum(rooms)

    def _fitting(self, place: str, most: int) -> int:
        """Return how many of `most` jobs a place has room for now."""
        try:
            room = self.backends[place].room() if most else 0
        except Unreachable as error:
            _LOG.warning("%s", error)
            room = 0
        if room is not None and room < most:
            self.crowded.add(place)
        else:
            self.crowded.discard(place)
        return most if room is None else min(room, most)

    def choose(self, run: str, room: Mapping[str, int]) -> str | None:
        """Return the place for a run's next attempt. A single place is always returned. Of several
        places, return the first with room, starting after the place where the last attempt was
        preempted or lost; None if none of them has room."""
        if not self.several:
            return self.names[0]
        state, order = self._run_table.views[run].state, self.names
        if state.state in _AGAIN:
            last = self.at(run, state.attempt)
            after = 0 if last is None else order.index(last) + 1
            order = (*order[after:], *order[:after])
        return next((place for place in order if room[place] > 0), None)

    def why_leave(self, place: str, room: Mapping[str, int]) -> str | None:
        """Return why attempts without a job should move from `place` to another place: `place`
        accepts no jobs or has not answered for long. Return None if they should stay, or if no
        other place has room."""
        room_elsewhere = any(free > 0 for other, free in room.items() if other != place)
        if not self.several or not room_elsewhere:
            return None
        if (error := self._closed.get(place)) is not None:
            return str(error)
        since = self._silent_since.get(place)
        waited = 0.0 if since is None else self._clock() - since
        if waited > self._patience_s:
            return f"no answer for {waited:.0f} s"
        # The last answer of a place that stopped answering still counts.
        refused = not self.takes(place) and (since is None or place in self._full)
        return "it accepted no more jobs" if refused else None


class Withdrawals:
    """Withdraws attempts: ends attempts that a place does not accept, and restarts their runs at
    another place. With `starting=False` no attempt is withdrawn."""

    def __init__(
        self, run_table: RunTable, places: Places, policy: FailurePolicy, *, starting: bool
    ) -> None:
        self._run_table = run_table
        self._places = places
        self._policy = policy
        self._starting = starting

    def check(self, place: str, runs: Iterable[str], unsubmitted: set[str]) -> list[str]:
        """If `place` accepts no jobs or has not answered for long, withdraw the newest attempts of
        these runs, as many as other places have room for. Remove the runs of withdrawn attempts
        from `unsubmitted` (see `Places.room`). Return the runs that stay at `place`."""
        runs = list(runs)
        room = self._places.room(unsubmitted)
        elsewhere = sum(room.values()) - room[place]
        why = self._places.why_leave(place, room)
        if why is None or not self._starting:
            return runs
        staying: list[str] = []
        for run in runs:
            attempt = self._run_table.views[run].state.opened
            cancelled = self._run_table.is_cancelled(run, attempt)
            if cancelled or run in self._run_table.retired or elsewhere <= 0:
                staying.append(run)
            else:
                elsewhere -= 1
                if self._run_table.withdraw(run, attempt, f"{place}: {why}"):
                    self.start_elsewhere(run, attempt)
                unsubmitted.discard(run)
        return staying

    def finish(self) -> None:
        """End the attempts that a killed launcher was withdrawing, and start their runs again."""
        for run, view in self._run_table.views.items():
            claimed = view.state.event is Event.CLAIMED and self._starting
            if claimed and self._run_table.finish_withdrawal(run, view.state.attempt):
                self.start_elsewhere(run, view.state.attempt)

    def start_elsewhere(self, run: str, attempt: int) -> None:
        """Restart a run whose attempt was withdrawn. Do nothing if a user has cancelled this
        attempt."""
        if not self._run_table.is_cancelled(run, attempt):
            self._policy.excuse(run, attempt, "because its place did not accept it")
