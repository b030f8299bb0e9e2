"""How many jobs each stage may have at once, where it says so itself."""

from collections import Counter
from collections.abc import Iterable

from sweeper.model.plan import Plan, Run

__all__ = ["StageRoom"]


class StageRoom:
    """What room the stages of a plan have beside their runs that are at work. A stage that says
    nothing of `max_parallel` has as much as the sweep."""

    def __init__(self, plan: Plan, busy: Iterable[Run]) -> None:
        limits = {stage.name: stage.launch.get("max_parallel") for stage in plan.stages}
        self._limits = {name: limit for name, limit in limits.items() if isinstance(limit, int)}
        self._busy = Counter(run.stage for run in busy) if self._limits else Counter[str | None]()

    def take(self, run: Run) -> bool:
        """Whether there is room for one more run of its stage; then it has it."""
        limit = None if run.stage is None else self._limits.get(run.stage)
        if limit is not None and self._busy[run.stage] >= limit:
            return False
        self._busy[run.stage] += 1
        return True
