"""The grid to run next, as YAML that can be launched. Pure.

It is the grid that was launched with as little changed as the findings ask for, comments kept:
a value more on an axis whose end is best (under the same name, so that finished runs stay), or
only the cells at the top with seeds that were not used yet (under a name of its own: the value of
a winner that is measured by fresh seeds flatters nobody).
"""

import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from analysis import words
from analysis.cells import Cell, Ranking
from analysis.findings import Finding
from analysis.frames import SweepData

__all__ = ["NextGrid", "propose"]

_FEWEST, _MOST, _CELLS = 3, 20, 8
_AXES = ("grid", "zip", "random", "when", "exclude", "include")


@dataclass(frozen=True)
class NextGrid:
    """`kind`: "extend" an axis, "confirm" the top with fresh seeds, or "seeds" for all cells."""

    kind: str
    why: str
    yaml: str
    command: str
    runs: int
    cells: int = 0


def propose(
    data: SweepData, ranking: Ranking, findings: Sequence[Finding], needed: int | None
) -> NextGrid | None:
    """What the findings ask for, if the grid's text can say it. `needed` is how many seeds a cell
    are thought to part the cells at the top."""
    text = data.document.get("grid")
    if not isinstance(text, str) or len(data.names) > 1 or not text.strip():
        return None
    kinds = {finding.kind for finding in findings}
    edges = [f.evidence for f in findings if f.kind == "edge" and f.evidence]
    extended = [edge for edge in edges if edge.get("suggestion") is not None]
    if extended:
        return _extend(data, text, extended)
    if ranking.best is None:
        return None
    if "tied" in kinds:
        cells = (ranking.best, *ranking.tied)
        of = "the best cell and those that could not be told apart"
        return _confirm(data, cells, of, text, needed)
    if "not_compared" in kinds and not ranking.comparisons and _seeded(data, ranking):
        cells = (ranking.best, *ranking.others)
        many = len(cells) > _CELLS  # three seeds of each would be many runs
        return _confirm(data, cells, "", text, needed) if many else _seeds(data, ranking, text)
    return None


def _seeded(data: SweepData, ranking: Ranking) -> bool:
    """Whether other seeds are likely to give other results."""
    recipe: Mapping[str, Any] = data.document.get("recipe") or {}
    known = recipe.get("seed_field") or any(run.seed is not None for run in data.runs)
    return bool(known) and not any(cell.summary.identical for cell in ranking.cells)


def _parsed(text: str, *, comments: bool) -> Any:
    """The grid as a mapping, with `comments` as ruamel's own that keeps them; None when it is
    none, or takes over from another file, which may not be found from elsewhere."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    reader: Any = YAML(typ="rt") if comments else YAML(typ="safe", pure=True)
    try:
        found: Any = reader.load(text)
    except (YAMLError, ValueError, RecursionError):
        return None
    if not isinstance(found, Mapping) or "extends" in found:
        return None
    return cast(Any, found)


def _written(grid: Any, title: str) -> str:
    from ruamel.yaml import YAML

    out = io.StringIO()
    writer: Any = YAML(typ="rt")
    writer.width = 100
    writer.dump(grid, out)
    return f"# {title}\n{out.getvalue()}"


def _named(grid: Any, name: str) -> None:
    """With its name: a file elsewhere would get another one from where it lies."""
    if "name" in grid:
        grid["name"] = name
    else:
        insert: Any = getattr(grid, "insert")  # noqa: B009
        insert(0, "name", name)


def _kept(data: SweepData, without: Sequence[str]) -> list[str]:
    """The overrides of the command line that still mean something."""
    given: list[Any] = data.document.get("overrides") or []
    keys = [str(o).lstrip("~").partition("=")[0].strip() for o in given]
    return [
        str(override)
        for override, key in zip(given, keys, strict=True)
        if not str(override).startswith("~") and key not in without and key != "name"
    ]


def _command(overrides: Sequence[str]) -> str:
    return shlex.join(["sweeper", "launch", "next.yaml", *overrides])


def _extend(data: SweepData, text: str, edges: Sequence[Mapping[str, Any]]) -> NextGrid | None:
    grid = _parsed(text, comments=True)
    axes: Any = grid.get("grid") if grid is not None else None
    if not hasattr(axes, "get"):  # it has no such section
        return None
    done: list[str] = []
    more = 1.0
    for edge in edges:
        key, new = edge["axis"], edge["suggestion"]
        values: Any = axes.get(key)
        planned: list[Any] = data.axes.get(key) or []
        if not hasattr(values, "insert") or not planned or new in planned:
            continue
        if len(values) != len(planned):
            values[:] = planned  # an override had replaced them
        first = edge["side"] == "smallest" and planned[0] == edge["value"]
        at = 0 if first else len(planned)
        values.insert(at, new)
        more *= (len(planned) + 1) / len(planned)
        done.append(key)
    if not done:
        return None
    _named(grid, data.name)
    changed = words.listed(done)
    why = f"{changed} one value further; finished runs are kept."
    title = f"{data.name} with {changed} extended: launch it and what is done stays done."
    runs = round(len(data.runs) * more) - len(data.runs)
    return NextGrid("extend", why, _written(grid, title), _command(_kept(data, done)), runs)


def _fresh(data: SweepData, count: int) -> list[int]:
    used = [run.seed for run in data.runs if run.seed is not None]
    start = max(used, default=-1) + 1
    return list(range(start, start + count))


def _set_seeds(grid: Any, seeds: int | list[int]) -> None:
    given = grid.get("seeds")
    field = given.get("field") if isinstance(given, Mapping) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    values = _inline(seeds) if isinstance(seeds, list) else seeds
    grid["seeds"] = values if field is None else _inline({"field": field, "values": values})


def _inline(value: Any) -> Any:
    """A list or mapping that is written in one line."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    made: Any = CommentedSeq(value) if isinstance(value, list) else CommentedMap(value)
    made.fa.set_flow_style()
    return made


def _confirm(
    data: SweepData, top: Sequence[Cell], of: str, text: str, needed: int | None
) -> NextGrid | None:
    grid = _parsed(text, comments=False)
    if grid is None or "command" in grid:
        return None
    cells = top[:_CELLS]
    most = max(cell.summary.n for cell in cells)
    count = min(max(needed or 2 * most, _FEWEST, most + 1), _MOST)
    seeds = {"seeds": grid.get("seeds")}
    _set_seeds(seeds, _fresh(data, count))
    include = [_inline(dict(cell.settings)) for cell in cells]
    # The file's own order: what is set, what is compared, how it runs.
    before = {key: grid[key] for key in ("recipe", "service", "base") if key in grid}
    after = {key: grid[key] for key in grid if key not in (*_AXES, "name", "seeds", *before)}
    name = f"{data.name}-confirm"
    made = {"name": name, **before, "include": include, **seeds, **after}
    told = of if of and len(cells) == len(top) else f"the first {len(cells)} cells"
    why = (
        f"{words.counted(len(cells), 'cell')} at the top on {count} fresh seeds each, so that what "
        "they show is not what chose them."
    )
    title = f"{told} of {data.name}, on fresh seeds."
    overrides = _kept(data, [*(key for cell in cells for key in cell.settings), *data.axes])
    yaml = _written(made, title[:1].upper() + title[1:])
    return NextGrid("confirm", why, yaml, _command(overrides), len(cells) * count, len(cells))


def _seeds(data: SweepData, ranking: Ranking, text: str) -> NextGrid | None:
    grid = _parsed(text, comments=True)
    if grid is None:
        return None
    _set_seeds(grid, _FEWEST)
    _named(grid, data.name)
    runs = len(ranking.cells) * _FEWEST - len(data.runs)
    if runs <= 0:
        return None
    why = "Three seeds a cell: the least that tells noise from effect."
    title = f"{data.name} with three seeds a cell."
    return NextGrid("seeds", why, _written(grid, title), _command(_kept(data, [])), runs)
