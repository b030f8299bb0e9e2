"""Finds the runs that a user selects. A selector is tried in this order: as a sweep, an id or a
name, a glob of sweeps, a glob of names, values (`lr=3e-2,seed=0`), the beginning of a name or an
id."""

import fnmatch
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from sweeper.errors import NotFound, UsageError
from sweeper.results.runs import RecordedRun
from sweeper.sweep.states import OPEN, NoState, State

Run = TypeVar("Run", bound=RecordedRun)

_ID_DIGITS = 6
_VALUE = r"(?<==)([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)(?=[,*]|\Z)"
"""Matches a number after `=` in a name or selector, up to a comma, a `*` or the end."""


def pick(
    runs: Sequence[RecordedRun],
    names: Sequence[str] = (),
    states: Sequence[str] | None = None,
    where: str | None = None,
    *,
    dropped: bool = False,
) -> list[RecordedRun]:
    """Return the runs that match a selector in `names`, are in one of `states`, and meet the
    condition `where`, in the order of `runs`. Unless `dropped` is set or `where` mentions
    `retired`, a selector matches retired runs that have ended only if it matches no other run.
    Raises `NotFound` for a selector without a match, `UsageError` for an invalid state or
    condition."""
    check_states(states)
    dropped = dropped or asks_for_dropped(where)
    chosen = list(runs) if dropped else current(runs)
    if names:
        wanted: set[int] = set()
        for name in names:
            selected = named(runs, name, dropped=dropped)
            if not selected:
                raise NotFound(f"no run {name!r} in {runs[0].sweep if runs else 'the sweep'}")
            wanted.update(map(id, selected))
        chosen = [run for run in runs if id(run) in wanted]
    if states:
        chosen = [run for run in chosen if run.state.value in states]
    if where:
        from sweeper.results.where import parse_where, select

        records = [run.record() for run in chosen]
        matching = {id(record) for record in select(parse_where(where), records)}
        chosen = [
            run for run, record in zip(chosen, records, strict=True) if id(record) in matching
        ]
    return chosen


def current(runs: Iterable[Run]) -> list[Run]:
    """Return the runs that are in the grid, and retired runs that may still be running."""
    return [run for run in runs if not run.retired or run.state in OPEN]


def asks_for_dropped(where: str | None) -> bool:
    """Return whether a condition mentions the key `retired`; False if there is no condition. Raises
    `UsageError` for an invalid condition."""
    if not where:
        return False
    from sweeper.results.where import parse_where

    return "retired" in parse_where(where).keys


def check_states(states: Sequence[str] | None) -> None:
    """Raise `UsageError` for an unknown state."""
    names_of_states = [state.value for state in (*State, *NoState)]
    for state in states or ():
        if state not in names_of_states:
            raise UsageError(f"no state {state!r}: use one of {', '.join(names_of_states)}")


def named(
    runs: Sequence[RecordedRun], selector: str, *, dropped: bool = False
) -> list[RecordedRun]:
    """Return the runs that match one selector. If `dropped` is not set, retired runs that have
    ended are returned only if no other run matches."""
    selected = _named(runs, selector)
    return selected if dropped else current(selected) or selected


def split_root(selector: str, roots: Iterable[str]) -> tuple[str | None, str]:
    """Split a selector into the root that it begins with and the rest. The root is None if the
    selector begins with none of `roots`."""
    if selector.startswith("/") or "://" in selector:
        for root in sorted(roots, key=len, reverse=True):
            top = root.rstrip("/") + "/"
            if selector.startswith(top):
                return root, selector.removeprefix(top)
    return None, selector


def _named(runs: Sequence[RecordedRun], selector: str) -> list[RecordedRun]:
    root, selector = split_root(selector.rstrip("/"), {run.root for run in runs})
    if root is not None:
        runs = [run for run in runs if run.root == root]
    matches = [run for run in runs if run.sweep == selector]
    matches = matches or [run for run in runs if selector in (_full(run), run.name, run.id)]
    matches = matches or [run for run in runs if fnmatch.fnmatchcase(run.sweep, selector)]
    if matches:
        return matches
    plain = in_one_spelling(selector)
    names = [(run, in_one_spelling(_full(run)), in_one_spelling(run.name)) for run in runs]
    return (
        [run for run, *both in names if any(fnmatch.fnmatchcase(name, plain) for name in both)]
        or _having(runs, selector)
        or [run for run, *both in names if any(name.startswith(plain) for name in both)]
        or [run for run, *_ in names if _full(run).startswith(selector)]
        or [run for run in runs if len(selector) >= _ID_DIGITS and run.id.startswith(selector)]
    )


def _full(run: RecordedRun) -> str:
    return f"{run.sweep}/{run.name}"


def in_one_spelling(name: str) -> str:
    """Write a name or selector with its numbers in canonical form: `3e-2` as `0.03`."""
    return re.sub(_VALUE, lambda match: _canonical(match[1]), name)


@functools.lru_cache(maxsize=4096)
def _canonical(text: str) -> str:
    from sweeper.fields.nodes import scalar

    # Imported late: only needed for selectors with values.
    from sweeper.grid.naming import canonical

    try:
        return canonical(scalar(text))
    except (ValueError, OverflowError):
        return text


def _having(runs: Sequence[RecordedRun], selector: str) -> list[RecordedRun]:
    """Return the runs that have all values in a selector such as `lr=3e-2,seed=0`, with short or
    full keys. Return [] for any other kind of selector."""
    sweep, _, values = selector.rpartition("/")
    wanted = [part.partition("=") for part in values.split(",")]
    if not all(key and equal and value for key, equal, value in wanted):
        return []
    return [
        run
        for run in runs
        if sweep in ("", run.sweep) and all(_has(run, key, value) for key, _, value in wanted)
    ]


def _has(run: RecordedRun, key: str, value: str) -> bool:
    from sweeper.grid.naming import canonical

    text = _canonical(value)
    for part in run.name.split(","):
        name, _, label = part.partition("=")
        if name == key:
            return value == label or text == _canonical(label)
    config: Mapping[str, object] = run.config
    return key in config and text == canonical(config[key])
