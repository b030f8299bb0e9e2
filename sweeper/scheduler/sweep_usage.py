"""What a sweep has used, and has yet to use, for whoever asks how it stands: its launcher knows
that without asking each run again."""

from sweeper.model.plan import Plan
from sweeper.model.states import State
from sweeper.model.usage import SweepUsage, total
from sweeper.results.forecast import Going, forecast, not_known_yet, settings_of
from sweeper.scheduler.attempt_usage import AttemptUsage
from sweeper.scheduler.context import Context
from sweeper.scheduler.run_table import RunTable
from sweeper.storage.documents import timestamp

__all__ = ["SweepUsageWatch"]

_SECONDS = 10.0
"""Between two sums."""
_REMOTE_LOOKS = 10
"""Outcomes that are read for one sum where each takes a while."""


class SweepUsageWatch:
    """Sums up what the attempts of a sweep use, every few seconds."""

    def __init__(self, context: Context, run_table: RunTable, attempts: AttemptUsage) -> None:
        self._context, self._run_table, self._attempts = context, run_table, attempts
        self._at: float | None = None
        self._events = 0
        self._known: SweepUsage | None = None

    def look(self, plan: Plan) -> SweepUsage | None:
        """The sum; as it was a moment ago where runs are at work, or nothing has happened since.
        None while nothing was counted, or not all is known."""
        now, views = self._context.clock(), self._run_table.views.values()
        events = sum(view.size for view in views)
        happened = events != self._events or self._known is None
        busy = any(view.state.at_work for view in views)
        if self._at is None or now - self._at >= _SECONDS or (happened and not busy):
            self._at, self._events = now, events
            found = self._sum(plan)
            before = self._known and self._known._replace(time=None)
            if found != before:
                self._known = None if found is None else found._replace(time=timestamp())
        return self._known

    def _sum(self, plan: Plan) -> SweepUsage | None:
        known = self._attempts.look(_REMOTE_LOOKS if self._context.store.is_remote else None)
        runs = [Going(settings) for settings in not_known_yet(plan)]
        for run, view in self._run_table.views.items():
            planned, state = self._run_table.runs[run], view.state
            attempts = [(run, attempt) for attempt in range(1, state.opened + 1)]
            if any(key not in known for key in attempts):
                return None
            wants = view.wants and run not in self._run_table.retired
            runs.append(
                Going(
                    settings_of(planned.config, plan.recipe_of(planned.stage)),
                    total(known[key].usage for key in attempts),
                    finished=not (wants or state.at_work),
                    example=state.state is State.SUCCEEDED and state.opened == 1,
                )
            )
        return forecast(runs)
