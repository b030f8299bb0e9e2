"""Withdraws attempts from a place that keeps them waiting when another place has room."""

from collections.abc import Iterable

from sweeper.scheduler.failure_policy import FailurePolicy
from sweeper.scheduler.places import Places
from sweeper.scheduler.run_table import RunTable
from sweeper.sweep.states import Event


class Withdrawals:
    """Withdraws attempts, and has their runs started again at another place. With
    `starting=False` none is withdrawn."""

    def __init__(
        self, run_table: RunTable, places: Places, policy: FailurePolicy, *, starting: bool
    ) -> None:
        self._run_table = run_table
        self._places = places
        self._policy = policy
        self._starting = starting

    def look(self, place: str, runs: Iterable[str], unsubmitted: set[str]) -> list[str]:
        """Withdraws the opened attempts of these runs, if their place keeps them waiting and
        another has room. They leave `unsubmitted`, the runs whose opened attempts are not
        running. Returns those that stay."""
        runs = list(runs)
        room = self._places.room(unsubmitted)
        left = sum(room.values()) - room[place]
        why = self._places.why_leave(place, room)
        if why is None or not self._starting:
            return runs
        staying: list[str] = []
        for run in runs:
            attempt = self._run_table.views[run].state.opened
            asked = self._run_table.is_cancelled(run, attempt)
            if asked or run in self._run_table.retired or left <= 0:
                staying.append(run)
            else:
                left -= 1
                if self._run_table.withdraw(run, attempt, f"{place}: {why}"):
                    self.start_elsewhere(run, attempt)
                unsubmitted.discard(run)
        return staying

    def finish(self) -> None:
        """Ends the attempts that a killed launcher was withdrawing. No worker has them, and none
        will."""
        for run, view in self._run_table.views.items():
            claimed = view.state.event is Event.CLAIMED and self._starting
            if claimed and self._run_table.finish_withdrawal(run, view.state.attempt):
                self.start_elsewhere(run, view.state.attempt)

    def start_elsewhere(self, run: str, attempt: int) -> None:
        """Starts a run again whose attempt was withdrawn, unless a user has cancelled it since."""
        if not self._run_table.is_cancelled(run, attempt):
            self._policy.excuse(run, attempt, "since its place did not take it")
