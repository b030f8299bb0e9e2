"""Merges the attempts of a run into one history, in columns, as `rows.merge` does in rows."""

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from sweeper.metrics.rows import as_float, describe
from sweeper.metrics.tables.columns import ABSENT, Columns, Floats, Odd, absent, join, present
from sweeper.sweep.labels import plural


def merge_columns(attempts: Sequence[Columns]) -> Columns:
    """Merge the attempts of a run, oldest first, into one history: one row per step in ascending
    order, then the rows without a step (ABSENT). If the lowest step of an attempt is 10, rows of
    earlier attempts from step 10 on are dropped. Rows without a step are kept from one attempt
    only: the latest attempt with such rows. Steps become floats."""
    used = [attempt for attempt in attempts if attempt.rows]
    malformed = sum(attempt.malformed for attempt in attempts)
    torn = sum(attempt.torn for attempt in attempts)
    if len(used) == 1 and _is_plain(used[0]):
        only = used[0]
        return Columns(only.rows, only.values, only.odd, malformed, torn)
    if not used:
        return Columns(0, {"step": absent(0)}, {}, malformed, torn)
    steps = [_steps(attempt) for attempt in used]
    all_steps = np.concatenate(steps)
    stepped = present(all_steps) & _lasting(steps)
    unique, place = np.unique(all_steps[stepped], return_inverse=True)
    loose = _loose(steps)
    rows = len(unique) + len(loose)
    target = np.full(len(all_steps), -1)
    target[stepped] = place
    target[loose] = np.arange(len(unique), rows)
    joined = join(used)
    values = {"step": np.concatenate((unique, absent(len(loose))))}
    odd: dict[str, Odd] = {}
    for key in dict.fromkeys(chain(joined.values, joined.odd)):
        if key != "step":
            odd_cells = joined.odd.get(key, {})
            values[key], odd_left = _placed(joined.column(key), odd_cells, target, rows)
            if odd_left:
                odd[key] = odd_left
    return Columns(rows, values, odd, malformed, torn)


def odd_steps(attempts: Sequence[Columns]) -> list[str]:
    """Return warnings about decreasing steps, and about steps that are not numbers. `attempts` are
    oldest first. A decrease right after the rows that a resumed attempt copied gives no warning."""
    if len(attempts) == 1 and _is_plain(attempts[0]):
        return []
    notes: list[str] = []
    back: list[tuple[float, float]] = []
    before: list[Floats] = []
    for columns in attempts:
        steps = _steps(columns)
        start = max((_alike(steps, earlier) for earlier in before), default=0)
        before.append(steps)
        back += _back(columns, steps, start)
        texts = [step for step in columns.odd.get("step", {}).values() if as_float(step) is None]
        texts = [step for step in texts if step is not None]
        if texts:
            singular, plural_form = (
                "row has a step that is not a number",
                "rows have steps that are not numbers",
            )
            rows = plural(len(texts), singular, plural_form)
            notes.append(f"{rows} (the first: {describe(texts[0])})")
    if back:
        high, low = back[0]
        times = plural(len(back), "time")
        notes.append(
            f"steps go back {times} (the first from {high:g} to {low:g}): several programs may "
            f"have written to this file; the row with the highest step counts as the last"
        )
    return notes


def _alike(steps: Floats, others: Floats) -> int:
    """Return the number of equal steps at the beginning of two columns."""
    size = min(len(steps), len(others))
    differ = steps[:size].view(np.uint64) != others[:size].view(np.uint64)
    return int(differ.argmax()) if differ.any() else size


def _back(columns: Columns, steps: Floats, start: int) -> list[tuple[float, float]]:
    """Return (previous step, step) for each row from `start` on whose step is below the previous.

    Only rows that have a key in common are compared, because an evaluation may log a step after
    the training has logged later steps.
    """
    new_steps = steps[start:]
    new_steps = new_steps[present(new_steps)]
    if not (new_steps[1:] < new_steps[:-1]).any():
        return []
    drops: dict[int, float] = {}
    for key, column in columns.values.items():
        rows = start + np.flatnonzero(present(column[start:]) & present(steps[start:]))
        if key == "step" or len(rows) < 2:
            continue
        here = steps[rows]
        [at] = np.nonzero(here[1:] < here[:-1])
        drops |= {int(rows[n + 1]): float(here[n]) for n in at.tolist()}
    return [(drops[row], float(steps[row])) for row in sorted(drops)]


def _is_plain(columns: Columns) -> bool:
    """Return whether the columns need no merging."""
    if "step" not in columns.values or "step" in columns.odd:
        return False
    steps = columns.values["step"]
    if not len(steps):
        return True
    # Numbers in ascending order are not NaN; only the ends could be infinite.
    ends = math.isfinite(steps[0]) and math.isfinite(steps[-1])
    return ends and bool((steps[1:] > steps[:-1]).all())


def _steps(columns: Columns) -> Floats:
    """Return the step of each row, ABSENT if it is not a finite number."""
    steps = columns.column("step").copy()
    for row, value in columns.odd.get("step", {}).items():
        number = as_float(value)
        steps[row] = ABSENT if number is None else number
    steps[~np.isfinite(steps)] = ABSENT
    return steps


def _lasting(steps: Sequence[Floats]) -> NDArray[np.bool_]:
    """Return a mask over the rows of all attempts: True for the rows whose step is below the
    lowest step of every later attempt."""
    begin, lasting = math.inf, list[NDArray[np.bool_]]()
    for attempt in reversed(steps):
        lasting.append(attempt < begin)
        begin = min(begin, float(np.nanmin(attempt, initial=math.inf)))
    return np.concatenate(lasting[::-1])


def _loose(steps: Sequence[Floats]) -> NDArray[np.intp]:
    """Return the rows without a step of the latest attempt with such rows, as indices over all."""
    end = sum(map(len, steps))
    for attempt in reversed(steps):
        end -= len(attempt)
        rows = np.flatnonzero(~present(attempt))
        if len(rows):
            return rows + end
    return np.empty(0, np.intp)


def _placed(column: Floats, odd: Odd, target: NDArray[np.intp], rows: int) -> tuple[Floats, Odd]:
    """Return a column with each value in its target row (-1: drop the value). If several values
    have the same target row, the last value is kept."""
    placed = absent(rows)
    mask = present(column) & (target >= 0)
    placed[target[mask]] = column[mask]
    if not odd:
        return placed, {}
    last: dict[int, int] = {}
    for row in sorted([*np.flatnonzero(mask).tolist(), *odd]):
        if target[row] >= 0:
            last[int(target[row])] = row
    odd_left = {place: odd[row] for place, row in last.items() if row in odd}
    for place in odd_left:
        placed[place] = ABSENT
    return placed, odd_left
