"""The last printed lines of runs, as a function for Python."""

from collections.abc import Sequence

from sweeper.errors import UsageError
from sweeper.results.registry import Registry
from sweeper.results.selectors import pick
from sweeper.store.opening import default_root

_MOST = 100_000


def logs(
    sweep: str,
    runs: Sequence[str] = (),
    *,
    root: str | None = None,
    state: Sequence[str] | None = None,
    where: str | None = None,
    lines: int = 20,
) -> dict[str, list[str]]:
    """Return the last `lines` printed lines of each run of a sweep, by run name. Only runs that
    match `runs`, `state` and `where` are included. Raises `NotFound`, `UsageError`."""
    if not 1 <= lines <= _MOST:
        raise UsageError(f"cannot show {lines} lines: use a number from 1 to {_MOST}")
    selected = Registry(root or default_root(), snapshot=True).sweep(sweep)
    chosen = pick(selected.runs, runs, state, where)
    return {run.name: run.log_tail(lines, limit=lines * 4096) for run in chosen}
