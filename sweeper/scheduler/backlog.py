"""Counts the runs that a launcher still has to start, and says why starting is held."""

from collections.abc import Collection, Iterator

from sweeper.scheduler.budgets import Spending
from sweeper.scheduler.failures import FailurePolicy
from sweeper.scheduler.requests import Requests
from sweeper.scheduler.stages import Stages
from sweeper.sweep.run_table import RunTable
from sweeper.sweep.states import State


class Backlog:
    """The runs that are neither over nor running. With `starting=False`, only those that an
    earlier launcher may have submitted."""

    def __init__(
        self,
        run_table: RunTable,
        stages: Stages,
        policy: FailurePolicy,
        requests: Requests,
        spending: Spending | None,
        *,
        starting: bool,
    ) -> None:
        self._run_table = run_table
        self._stages = stages
        self._policy = policy
        self._requests = requests
        self._spending = spending
        self._starting = starting

    @property
    def held(self) -> str | None:
        """Return the reason why no runs are started; None if nothing holds them or none are
        left."""
        spent = None if self._spending is None else self._spending.reached
        if self._policy.held is not None:
            return self._policy.held
        held = self._requests.held or spent
        return held if held is not None and self.wanting() else None

    def left(self, unsubmitted: Collection[str]) -> int:
        """Count the runs that are still to be started, or may have been. `unsubmitted` are runs
        with an opened attempt that is at no backend."""
        unknown = self._run_table.unacknowledged().keys()
        if not self._starting or (self.held is not None and self._requests.pause is None):
            return len(unknown - set(unsubmitted))
        return self.wanting()  # the user may resume it at any time

    def wanting(self) -> int:
        """Count the runs that are neither over nor running."""
        vain = self._stages.in_vain
        wanting = sum(view.wants and not vain(run) for run, view in self._run_table.views.items())
        unknown = self._run_table.unacknowledged().keys() - self._run_table.retired
        return wanting + self._stages.to_come + len(unknown)

    def again(self) -> Iterator[State]:
        """Yield the states of runs that have run and will be started again."""
        if (self.held is None or self._requests.pause is not None) and self._starting:
            unknown = self._run_table.unacknowledged().keys() - self._run_table.retired
            for run, view in self._run_table.views.items():
                if view.state.attempt and (view.wants or run in unknown):
                    yield view.state.state
