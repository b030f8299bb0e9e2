"""Starts jobs while there is room: first those that an earlier launcher may have submitted, then
the next attempts of runs."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from sweeper.scheduler.components import Components
from sweeper.scheduler.places import Places, TryCall
from sweeper.store.documents import timestamp
from sweeper.sweep.folder import attempt_of
from sweeper.sweep.observation import Kind, Observation
from sweeper.sweep.plan import Plan, Run
from sweeper.sweep.states import Event


class _StageRoom:
    """The number of runs that each stage may still start. A stage without its own `max_parallel`
    has the sweep's limit. A stage with its own `gpus` is also limited by the free GPUs."""

    def __init__(self, plan: Plan, busy: Iterable[Run], places: Places) -> None:
        limits = {stage.name: stage.launch.get("max_parallel") for stage in plan.stages}
        self._limits = {name: limit for name, limit in limits.items() if isinstance(limit, int)}
        pinned = [stage.name for stage in plan.stages if stage.launch.get("gpus")]
        limited = self._limits or pinned
        self._busy = Counter(run.stage for run in busy) if limited else Counter[str | None]()
        for name in pinned:
            room = places.room_for(plan.launch_of(name))
            if room is not None:
                most = self._busy[name] + room
                self._limits[name] = min(most, self._limits.get(name, most))

    def take(self, run: Run) -> bool:
        """Count `run` as a busy run of its stage, or return False if the stage is full."""
        limit = None if run.stage is None else self._limits.get(run.stage)
        if limit is not None and self._busy[run.stage] >= limit:
            return False
        self._busy[run.stage] += 1
        return True


class JobStarter:
    """Starts the jobs of one sweep. The argument `check` raises if another launcher has taken over
    the sweep. `unsubmitted` has the ids of the runs whose newest recorded attempt has no job."""

    def __init__(self, parts: Components, check: Callable[[], None]) -> None:
        self._check = check
        self._starting = parts.starting
        self._run_table = parts.run_table
        self._places = parts.places
        self._stages = parts.stages
        self._outcomes = parts.outcomes
        self._policy = parts.policy
        self._requests = parts.requests
        self._backlog = parts.backlog
        self._parallelism = parts.parallelism
        self._withdrawals = parts.withdrawals
        self._submitter = parts.submitter
        self._engine_away = False
        self._spending_unknown = False
        self.unsubmitted: set[str] = set()

    def check(
        self,
        try_call: TryCall,
        observed: dict[str, Observation],
        *,
        refused: str | None,
        engine_away: bool,
        spending_unknown: bool,
    ) -> None:
        """Start the jobs that may start now, and add to `observed` why other runs wait. `refused`
        is `service` or `machine`, whichever rejected a job, or None. If the engine is missing or
        the spending is unknown, no new run is started."""
        self._engine_away, self._spending_unknown = engine_away, spending_unknown
        try_call(lambda: self._take_slots(observed, refused))
        # So far, jobs that may be running count as running. Now ask the backends about these jobs.
        self._acknowledge(try_call)
        self._start(try_call, observed)

    def _take_slots(self, observed: Mapping[str, Observation], refused: str | None) -> None:
        """Update `_parallelism`, the limit on jobs, from the sweep's load. Raises `Unreachable`."""
        paused = sum(seen.kind is Kind.PAUSED for seen in observed.values())
        self._parallelism.ask(self._requests.parallel)
        busy, most = self._busy(), 1 if self._policy.smoke else self._parallelism.here
        free, room = max(0, most - busy), sum(self._places.room(self.unsubmitted).values())
        startable = sum(1 for _ in itertools.islice(self._startable(), min(free, room)))
        self._parallelism.check(busy, startable, paused=paused, refused=refused)
        if room < free and self._places.crowded:
            self._parallelism.lower(busy + room)

    def _startable(self) -> Iterator[str]:
        """Yield the runs that would start now if the sweep could run more jobs."""
        if self._is_blocked():
            return
        room, runs = self._stage_room(), self._run_table.runs
        unsubmitted = self.unsubmitted - self._run_table.retired
        yield from (run for run in unsubmitted if room.take(runs[run]))
        retries_first = self._policy.waiting_for_retries
        for run, view in self._run_table.views.items():
            doubted = retries_first and not view.state.opened
            if not view.wants or doubted or self._policy.first not in (None, run):
                continue
            waits = self._outcomes.waits(run) is not None or self._stages.waiting(run) is not None
            if not waits and room.take(runs[run]):
                yield run

    def _is_blocked(self) -> bool:
        """Return whether no run may start now."""
        return (
            self._backlog.held is not None
            or not self._starting
            or self._engine_away
            or self._spending_unknown
        )

    def _free(self) -> int:
        """Return how many more jobs may be submitted now."""
        if self._is_blocked():
            return 0
        most = min(1, self._parallelism.jobs) if self._policy.smoke else self._parallelism.jobs
        return max(0, most - self._busy())

    def _busy(self) -> int:
        return sum(1 for _ in self._at_work())

    def _at_work(self) -> Iterator[str]:
        yield from self._run_table.open()
        yield from self._run_table.unacknowledged().keys() - self.unsubmitted

    def _stage_room(self) -> _StageRoom:
        busy = (self._run_table.runs[run] for run in self._at_work())
        return _StageRoom(self._stages.plan, busy, self._places)

    def _acknowledge(self, try_call: TryCall) -> None:
        """Ask the backends which recorded attempts have a job already, and submit the other
        attempts while there is room."""
        self.unsubmitted = set()
        opened = self._places.of_each(self._run_table.unacknowledged())
        for place, jobs in opened.items():
            if jobs and not try_call(partial(self._acknowledge_at, place, jobs)):
                # The call may have found some of these jobs before it failed.
                unknown = self._run_table.unacknowledged()
                runs = [run for run in jobs.values() if run in unknown]
                self._withdrawals.check(place, runs, self.unsubmitted)

    def _acknowledge_at(self, place: str, opened: Mapping[str, str]) -> None:
        """Do the same as `_acknowledge`, for one backend (`place`). `opened` is a dict from the
        token of each job to its run. Raises `Unreachable`."""
        jobs = self._places.ask(place, lambda backend: backend.find(list(opened)))
        self._run_table.add_each(Event.SUBMITTED, {attempt_of(job): {} for job in jobs})
        missing = [run for job, run in opened.items() if job not in jobs]
        self.unsubmitted |= set(missing)
        again: list[str] = []
        stage_room = self._stage_room()
        staying = self._withdrawals.check(place, missing, self.unsubmitted)
        room = self._places.room(self.unsubmitted)[place]
        for run in staying:
            attempt = self._run_table.views[run].state.opened
            if (attempt, Event.CANCEL) in self._run_table.events(run):
                self._end_cancelled(run, attempt)
            elif run in self._run_table.retired or len(again) >= min(room, self._free()):
                continue
            elif stage_room.take(self._run_table.runs[run]):
                again.append(run)
        self.unsubmitted -= set(again)
        # The files of an opened attempt may belong to another plan, be damaged, or come from
        # another user.
        self._submitter.describe_again(place, again)
        self._submit(place, again)

    def _end_cancelled(self, run: str, attempt: int) -> None:
        """Record the end of a cancelled attempt that has no job."""
        self._run_table.end(run, attempt, Event.CANCELLED, "cancelled", "before it was submitted")

    def _start(self, try_call: TryCall, observed: dict[str, Observation]) -> None:
        """Record and submit the next attempts of runs, while there is room."""
        room = min(self._free(), sum(self._places.room(self.unsubmitted).values()))
        retries_first, held = self._policy.waiting_for_retries, self._backlog.held
        stage_room = self._stage_room()
        chosen: list[str] = []
        for run, view in self._stages.in_order():
            if not view.wants:
                continue
            attempt = view.state.opened + 1
            end, wait = self._outcomes.waits(run), self._stages.waiting(run)
            if held is not None or not self._starting:
                if held is not None:
                    observed[run] = Observation(Kind.HELD)
            elif end is not None:
                observed[run] = Observation(Kind.LATER, None, timestamp(end.until))
            elif (attempt, Event.CANCEL) in self._run_table.events(run):
                # A user has cancelled this attempt in advance and then revoked that. End the
                # attempt, so that the next one is started.
                self._run_table.add(run, attempt, Event.INTENT)
                self._end_cancelled(run, attempt)
            elif wait is not None:
                observed[run] = wait
            elif self._engine_away:
                observed[run] = Observation(Kind.ENGINE)
            elif attempt == 1 and retries_first:
                observed[run] = Observation(Kind.DOUBTED)
            elif len(chosen) >= room or self._policy.first not in (None, run):
                continue
            elif stage_room.take(self._run_table.runs[run]):
                chosen.append(run)
        self._policy.started(chosen)
        self._open(chosen, try_call)

    def _open(self, runs: Iterable[str], try_call: TryCall) -> None:
        """Choose a backend with room for each run's next attempt; record and submit the attempt."""
        rooms = self._places.room(self.unsubmitted)
        places: dict[tuple[str, int], str] = {}
        for run in runs:
            place = self._places.choose(run, rooms)
            if place is not None:
                rooms[place] -= 1
                places[run, self._run_table.views[run].state.opened + 1] = place
        opened: dict[str, list[str]] = {}
        for run, place in self._submitter.open(places).items():
            opened.setdefault(place, []).append(run)
        for place, jobs in opened.items():
            try_call(partial(self._submit, place, jobs))

    def _submit(self, place: str, runs: Sequence[str]) -> None:
        """Check that this launcher still drives the sweep, and submit the newest recorded attempt
        of each run."""
        if runs:
            self._check()
            self._submitter.submit(place, runs)
