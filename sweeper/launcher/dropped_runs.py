"""Finds finished runs that a launch would take out of their sweep."""

from collections.abc import Container
from contextlib import suppress

from sweeper.errors import NotFound, UsageError
from sweeper.launcher.trust import Agree
from sweeper.store.base import Store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.labels import plural
from sweeper.sweep.plan import Plan, Run
from sweeper.sweep.states import State


def dropped(store: Store, old: Plan, kept: Container[str]) -> list[Run]:
    """Return the runs of a recorded plan that succeeded and are not among the ids `kept`."""
    left = [run for run in old.runs if not run.retired and run.id not in kept]
    states = SweepFolder(store, old.name).read_states() if left else {}
    return [r for r in left if r.id in states and states[r.id].state is State.SUCCEEDED]


def sentence(count: int) -> str:
    """Say that a launch would drop finished runs."""
    return (
        f"{plural(count, 'finished run')} of this sweep not in the grid now:"
        " a launch drops them from its status and its report"
    )


def require_consent(store: Store, new: Plan, agree: Agree) -> None:
    """Ask before finished runs leave their sweep. Raises `UsageError` if the answer is no."""
    folder = SweepFolder(store, new.name)
    with suppress(NotFound):  # at the first launch
        old = folder.read_plan()
        kept = {run.id for run in folder.with_chosen(new).runs}
        gone = dropped(store, old, kept)
        if gone and not agree([f"{new.name}: {sentence(len(gone))}"]):
            raise UsageError(
                f"{new.name}: {sentence(len(gone))}. Launch with --drop if you mean that; else"
                " keep their values in the grid, or give the grid another name"
            )
