"""Estimates the progress of a sweep and its runs, and the time left."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from sweeper.sweep.plan import Plan
from sweeper.sweep.states import RunState, State
from sweeper.tui.model import SweepView, nearly, remaining, sweep_remaining, total_steps
from sweeper.tui.series import Series

_UTC = re.compile(r"\b(?:(\d{4}-\d\d-\d\d)T)?(\d\d:\d\d:\d\d(?:\.\d+)?)(?:Z\b|\+00:00)")


class Timing:
    """The progress of the runs in a `sweep.json`. `totals` has the number of steps of each run,
    None if unknown. `clock` gives monotonic seconds."""

    def __init__(self, plan: Plan, clock: Callable[[], float]) -> None:
        takes = [_defaults(part) for part in plan.parts]
        parts = zip(plan.parts, takes, strict=True)
        self.totals = {run.id: total_steps(run.config, d) for part, d in parts for run in part.runs}
        self._clock = clock
        self._seen: dict[str, tuple[int, float, float]] = {}

    def fraction(self, run: str, state: RunState, series: Series | None) -> float | None:
        """Return the share of a run that is done."""
        if state.state is State.SUCCEEDED:
            return 1.0
        if series is None or series.step is None:
            return None
        if series.done is not None:
            return series.done
        total = self.totals[run]
        return None if total is None else min(1.0, (series.step + 1) / total)

    def left(
        self, run: str, state: RunState, fraction: float | None, began: float | None
    ) -> float | None:
        """Return the seconds to the end of a run whose attempt began at `began` by our clock."""
        if fraction is None:
            return None
        now = self._clock()
        attempt, at, then = self._seen.get(run, (0, 0.0, 0.0))
        if attempt != state.attempt:
            attempt, at, then = self._seen[run] = (state.attempt, now, fraction)
        since = began if state.attempt == 1 else None  # a later one may have begun with some done
        return nearly(remaining(fraction, (at, then), since, now))


def sweep_left(view: SweepView, took: Sequence[float]) -> float | None:
    """Return the seconds to the end of a sweep. `took` has the durations of its succeeded runs.
    None when no launcher would start the remaining runs."""
    if not view.launcher or view.held:
        return None
    at_work = [run.eta for run in view.runs if run.state in ("running", "submitted")]
    waiting = sum(run.wants for run in view.runs)
    took = took or [
        run.eta / (1.0 - run.fraction)
        for run in view.runs
        if run.eta and run.fraction is not None and run.fraction < 1.0
    ]
    typical = sum(took) / len(took) if took else None
    slots = view.limit or view.parallel
    return nearly(sweep_remaining(at_work, waiting, typical, slots))


def by_our_clock(text: str) -> str:
    """Convert the UTC times in a text to local ones: `rate limit since 12:01:03Z` -> `... since
    14:01`, with the date if it is known and not today. Other text stays."""
    return _UTC.sub(_here, text)


def _here(match: re.Match[str]) -> str:
    now = datetime.now(UTC)
    try:
        moment = datetime.fromisoformat(f"{match[1] or now.date()}T{match[2]}+00:00").astimezone()
    except (ValueError, OverflowError):
        return match[0]
    same = match[1] is None or moment.date() == now.astimezone().date()
    return moment.strftime("%H:%M" if same else "%Y-%m-%d %H:%M")


def _defaults(plan: Plan) -> dict[str, object]:
    """Return the defaults of the recipe, as the plan recorded them."""
    return {key: about.get("default") for key, about in plan.recipe.takes.items()}
