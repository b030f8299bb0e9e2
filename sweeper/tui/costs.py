"""Adds up what a watched sweep has used, and what it will, from what the poller has read of its
runs anyway."""

from collections.abc import Callable, Mapping
from contextlib import suppress

from sweeper import prices
from sweeper.errors import StoreError, UsageError
from sweeper.model.event import Outcome
from sweeper.model.states import RunState, State
from sweeper.model.usage import NO_USAGE, Usage, total
from sweeper.results.forecast import Going, brief, forecast, not_known_yet, settings_of
from sweeper.results.runs import Sweep, SweepRun
from sweeper.storage.heartbeats import Beat

__all__ = ["Costs"]

_SECONDS = 5.0
"""Between two sums."""


class Costs:
    """What the runs of a sweep have used. `run` makes a handle of one, `wants` says whether one is
    still to be started, or started again."""

    def __init__(
        self,
        sweep: Sweep,
        run: Callable[[str], SweepRun],
        wants: Callable[[str], bool],
        clock: Callable[[], float],
    ) -> None:
        plan = sweep.plan
        self._run, self._wants, self._clock = run, wants, clock
        self._retired = {one.id for one in plan.runs if one.retired}
        recipes = {stage.name: stage.recipe for stage in plan.stages}
        self._settings = {
            one.id: settings_of(one.config, recipes.get(one.stage or "", plan.recipe))
            for one in plan.runs
        }
        self._later = [*map(Going, not_known_yet(plan))]
        self._used: dict[tuple[str, int], Usage] = {}
        self._prices: prices.Prices | None = None
        self._at: float | None = None
        self._told = ""

    def told(
        self,
        states: Mapping[str, RunState],
        outcomes: Mapping[str, Outcome],
        beats: Mapping[tuple[str, int], Beat],
    ) -> str:
        """What was used, and what is to come, in a few words; as it was a moment ago where it was
        asked for then. Empty where nothing is counted."""
        now = self._clock()
        if self._at is None or now - self._at >= _SECONDS:
            self._at = now
            with suppress(UsageError):  # a price table that cannot be read
                self._told = self._sum(states, outcomes, beats)
        return self._told

    def _sum(
        self,
        states: Mapping[str, RunState],
        outcomes: Mapping[str, Outcome],
        beats: Mapping[tuple[str, int], Beat],
    ) -> str:
        for key, beat in beats.items():
            self._note(key, beat.body.usage)
        runs: list[Going] = []
        for run, settings in self._settings.items():
            state = states.get(run)
            if state is None:
                runs.append(Going(settings, finished=run in self._retired))
                continue
            if state.attempt and run in outcomes:
                self._note((run, state.attempt), outcomes[run].usage)
            each = [self._of(run, attempt) for attempt in range(1, state.opened + 1)]
            example = state.state is State.SUCCEEDED and state.opened == 1
            wants = run not in self._retired and self._wants(run)
            finished = not (wants or state.at_work)
            runs.append(Going(settings, total(each), finished, example))
        self._prices = self._prices or prices.load()
        found = forecast((*runs, *self._later), self._prices)
        return "" if found is None else brief(found)

    def _note(self, key: tuple[str, int], usage: Usage) -> None:
        """Take note of what an attempt has used; of two reports the one that tells of more."""
        if usage.counts.tokens >= self._used.get(key, NO_USAGE).counts.tokens:
            self._used[key] = usage

    def _of(self, run: str, attempt: int) -> Usage:
        """What an attempt has used. Of one that nobody watched the store is asked, once."""
        found = self._used.get((run, attempt))
        if found is None:
            try:
                found = self._used[run, attempt] = self._run(run).used(attempt).usage
            except StoreError:
                return NO_USAGE
        return found
