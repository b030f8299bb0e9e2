"""The selectors that verbs share: names, states, a condition."""

import fnmatch
from collections.abc import Sequence

from sweeper.errors import NotFound, UsageError
from sweeper.records.runs import RecordedRun
from sweeper.states import State

__all__ = ["pick"]


def pick(
    runs: Sequence[RecordedRun],
    names: Sequence[str] = (),
    states: Sequence[str] | None = None,
    where: str | None = None,
) -> list[RecordedRun]:
    """Those of `runs` that a user means, in their order: with one of `names` (a run's name or id, a
    glob, or the beginning of a name), in one of `states`, and for which `where` holds. Raises
    `NotFound` for a name that no run has, `UsageError` for a state or a condition that is none."""
    known = {state.value for state in State}
    for state in states or ():
        if state not in known:
            raise UsageError(f"no state {state!r}: there is {', '.join(sorted(known))}")
    chosen = list(runs)
    if names:
        wanted = {run.id for name in names for run in _named(runs, name)}
        chosen = [run for run in chosen if run.id in wanted]
    if states:
        chosen = [run for run in chosen if run.state.value in states]
    if where:
        from sweeper.where import parse_where, select

        found = {run.id: run for run in chosen}
        kept = select(parse_where(where), [run.record() for run in chosen])
        chosen = [found[record["id"]] for record in kept]
    return chosen


def _named(runs: Sequence[RecordedRun], name: str) -> list[RecordedRun]:
    found = (
        [run for run in runs if name in (run.name, run.id)]
        or [run for run in runs if fnmatch.fnmatchcase(run.name, name)]
        or [run for run in runs if run.name.startswith(name)]
        or [run for run in runs if len(name) >= 6 and run.id.startswith(name)]
    )
    if not found:
        raise NotFound(f"no run {name!r} in {runs[0].sweep if runs else 'the sweep'}")
    return found
