"""Makes the next grid as YAML: the launched grid with the few changes that the findings suggest.
Comments are preserved, and files that `extends` names are included. Pure."""

# There are three kinds of changes: another value on an axis whose end is best; the combinations
# that blocks lack (under the same name, so that finished runs stay); only the best cells (of each
# block) with unused seeds. A grid of the last kind has a new name, because new seeds measure a
# winner without the advantage of having been chosen.

import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from sweeper.analysis import labels
from sweeper.analysis.comparison.blocks import Block, Blocks
from sweeper.analysis.comparison.cells import Cell, Ranking
from sweeper.analysis.comparison.contrasts import rest
from sweeper.analysis.findings.finding import Finding
from sweeper.analysis.reading.commands import elsewhere, launching
from sweeper.analysis.reading.frames import SweepData
from sweeper.analysis.reading.settings import keys_of, level
from sweeper.errors import GridError
from sweeper.grid.extends import in_one
from sweeper.store.documents import dotted
from sweeper.sweep.labels import plural

_DEAR = 3
_FEWEST, _CELLS, _OF_A_BLOCK = 3, 8, 4
_AXES = ("grid", "zip", "random", "when", "exclude", "include")


@dataclass(frozen=True)
class NextGrid:
    """The next grid. `kind` is "extend" (more values of an axis), "confirm" (the top cells on new
    seeds), "seeds" (more seeds for all cells) or "holes" (missing cells of blocks). `overrides` are
    the overrides of the recorded launch that must be repeated for this grid. `command` launches the
    grid; it is "" until the path of the file is known. `note` says what else the user must do."""

    kind: str
    why: str
    yaml: str
    overrides: tuple[str, ...]
    runs: int
    cells: int = 0
    command: str = ""
    note: str | None = None

    def placed(self, data: SweepData, path: str) -> "NextGrid":
        """Return this grid with the command that launches it, and with a note. `path` is the path
        or address of the grid's file."""
        command = launching(data, path, self.overrides)
        notes = [note for note in (self._keeping(data), elsewhere(data)) if note]
        return replace(self, command=command, note=" ".join(notes))

    def _keeping(self, data: SweepData) -> str:
        """Return advice about keeping the file, which the next report replaces."""
        if self.kind == "confirm":
            return "The next report replaces next.yaml: copy it elsewhere to keep it."
        path = data.plan.grid_path if data.plan is not None else None
        return (
            f"Then copy it over {path or 'your own grid file'}: both describe the same sweep, and "
            "launching your old file would leave out the new runs. The next report replaces "
            "next.yaml."
        )


def propose(
    data: SweepData,
    ranking: Ranking,
    findings: Sequence[Finding],
    needed: int | None,
    blocks: Blocks | None = None,
) -> NextGrid | str | None:
    """Make the grid that the findings suggest. Return None if they suggest no grid, or a string
    with the reason why the grid cannot be written. `needed` is the number of seeds per cell that is
    enough to detect the smallest relevant difference (None if unknown)."""
    text = _on_record(data)
    if len(data.names) > 1:
        text, why = "", "this report compares several sweeps with different grids"
    elif data.plan is None:
        text, why = "", "these runs were not launched from a grid"
    else:
        why = "the text of the sweep's grid was not recorded"
        if any(run.stage for run in data.plan.runs):
            why = "no next.yaml for a stage: edit its axes in the grid that has it"
    if not text.strip():
        tied = () if _exactly_tied(ranking) else ("tied",)
        open_ = ("not_compared", "few_runs", *tied)
        wanted = ends_to_extend(findings) or any(finding.kind in open_ for finding in findings)
        return why if wanted or ranking.leaders else None
    if blocks is not None and ranking.leaders:
        return _in_blocks(data, ranking, blocks, text)
    kinds = {finding.kind for finding in findings}
    extended = [e for e in ends_to_extend(findings) if e.get("suggestion") is not None]
    if extended:
        return _extend(data, text, extended)
    return _fresh_seeds(data, ranking, kinds, text, needed)


def ends_to_extend(findings: Sequence[Finding]) -> list[Mapping[str, Any]]:
    """Return the evidence of findings about axes to extend: those whose end is significantly better
    than the value before it and, if there is a clear winner, those with only two values."""
    clear = any(finding.kind == "separated" for finding in findings)
    ends = [finding.evidence or {} for finding in findings if finding.kind in ("edge", "at_end")]
    return [end for end in ends if end["told"] or (clear and end["values"] < 3)]


def _fresh_seeds(
    data: SweepData, ranking: Ranking, kinds: set[str], text: str, needed: int | None
) -> NextGrid | str | None:
    """Return the grid with more seeds for existing cells. Return None if the findings do not
    suggest more seeds, or a string with the reason if the grid cannot be written."""
    best = ranking.best
    if best is None:
        return None
    if "tied" in kinds and _exactly_tied(ranking):
        return None
    if "tied" in kinds:
        label = "the best cell and those that may be as good"
        return _confirm(data, (best, *ranking.tied), label, text, needed)
    if "few_runs" in kinds:
        label = "the best cell and the next"
        return _confirm(data, (best, *ranking.others[:1]), label, text, needed)
    if "not_compared" in kinds and not ranking.comparisons and _seeded(data, ranking):
        cells = (best, *ranking.others)
        too_many = len(cells) > _CELLS  # too many to run each with more seeds
        return _confirm(data, cells, "", text, needed) if too_many else _seeds(data, ranking, text)
    return None


def _on_record(data: SweepData) -> str:
    """Return the recorded text of the grid, merged with the recorded files that it extends; "" if
    there is no plan."""
    if data.plan is None:
        return ""
    text = data.plan.grid_text
    if not data.plan.extends:
        return text
    try:
        whole = in_one(text, data.plan.extends)
    except GridError:
        return text
    return _dumped({key: value for key, value in whole.items() if value is not None})


def _in_blocks(
    data: SweepData, ranking: Ranking, blocks: Blocks, text: str
) -> NextGrid | str | None:
    """Return the grid with the missing combinations of blocks. If no combination is missing, return
    a grid with new seeds for the cells that may be the best of their block. Return None if no block
    needs more runs, or a string with the reason if the grid cannot be written."""
    lacking = [row for block in blocks.blocks for row in _lacking(data, ranking, blocks.by, block)]
    if lacking:
        return _filled(data, ranking, lacking, text)
    cells = [cell for block in blocks.blocks for cell in _open(ranking, blocks.by, block)]
    if not cells:
        return None
    label = f"those of each {blocks.by} that may be its best"
    return _confirm(data, cells, label, text, None, most=len(cells))


def _lacking(
    data: SweepData, ranking: Ranking, by: str, block: Block
) -> Iterator[Mapping[str, Any]]:
    """Yield the configurations of a block's missing cells that the sweep does not plan. (To run
    planned cells, launch the sweep again.)"""
    cells = [cell for cell in ranking.cells if level(cell.settings, by) == block.value]
    planned = {rest(cell, by) for cell in cells}
    for row in block.holes:
        like = next((c for c in ranking.cells if c.summary.n and rest(c, by) == row), None)
        if like is not None and row not in planned:
            yield _chosen(data, like) | {key: cells[0].settings[key] for key in keys_of(by)}


def _open(ranking: Ranking, by: str, block: Block) -> list[Cell]:
    """Return the best cell of a block and the cells tied with it (or the second cell if none is
    tied), at most `_OF_A_BLOCK` cells. The list is empty if the block needs no more runs."""
    best = block.best
    if best is None or (block.ahead and best.summary.n > 1):
        return []
    cells = (c for c in ranking.measured if level(c.settings, by) == block.value and not c.diverged)
    rivals = block.tied or tuple(cell for cell in cells if cell.name != best.name)[:1]
    return [best, *rivals[: _OF_A_BLOCK - 1]] if rivals else []


def _filled(
    data: SweepData, ranking: Ranking, lacking: Sequence[Mapping[str, Any]], text: str
) -> NextGrid | str:
    grid = _parsed(text, comments=True)
    if isinstance(grid, str):
        return grid
    entries = [_inline(dict(row)) for row in lacking]
    if grid.get("include"):
        grid["include"].extend(entries)
    else:
        grid["include"] = entries
    _named(grid, data.name)
    seeds = Counter(len(cell.runs) for cell in ranking.cells).most_common(1)[0][0]
    count = plural(len(lacking), "combination")
    why = f"{count} for which other blocks have results; finished runs are kept."
    title = f"{data.name} with {count} more, for which other blocks have results."
    yaml = _written(grid, title)
    return NextGrid(
        "holes", why, yaml, _remaining_axes(data, []), len(lacking) * seeds, len(lacking)
    )


def _exactly_tied(ranking: Ranking) -> bool:
    """Return whether cells are tied with the best, and all of these have exactly the same mean."""
    return bool(ranking.tied) and len(ranking.equal) == len(ranking.tied)


def _seeded(data: SweepData, ranking: Ranking) -> bool:
    """Return whether other seeds would probably give other results."""
    takes_seed = data.plan is not None and data.plan.recipe.seed_field
    takes_seed = takes_seed or any(run.seed is not None for run in data.runs)
    return bool(takes_seed) and not any(cell.summary.identical for cell in ranking.cells)


def _parsed(text: str, *, comments: bool) -> Any:
    """Return the grid as a mapping; with `comments`, as ruamel's mapping that preserves
    comments. Return a string with the reason if no next grid can be made from the text."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    reader: Any = YAML(typ="rt") if comments else YAML(typ="safe", pure=True)
    try:
        document: Any = reader.load(_untitled(text))
    except (YAMLError, ValueError, RecursionError):
        return "its text on record cannot be read"
    if not isinstance(document, Mapping):
        return "its recorded text is not a mapping"
    if "extends" in document:
        return "it extends another file, whose text is not on record"
    return cast(Any, document)


_TITLE = "# next.yaml: "


def _written(grid: Any, title: str) -> str:
    return f"{_TITLE}{title}\n{_dumped(grid)}"


def _untitled(text: str) -> str:
    """Return the text of a grid without the title comments that `_written` adds at its start."""
    lines = text.splitlines(keepends=True)
    while lines and lines[0].startswith(_TITLE):
        lines = lines[1:]
    return "".join(lines)


def _dumped(grid: Any) -> str:
    from ruamel.yaml import YAML
    from ruamel.yaml.representer import RoundTripRepresenter

    class Spelled(RoundTripRepresenter):
        """A YAML representer that writes a plain float as the report does, so that names of runs
        match the report."""

    def number(self: Any, value: float) -> Any:
        if not math.isfinite(value):
            return self.represent_float(value)
        return self.represent_scalar("tag:yaml.org,2002:float", labels.setting(value))

    add: Any = getattr(Spelled, "add_representer")  # noqa: B009
    add(float, number)
    out = io.StringIO()
    writer: Any = YAML(typ="rt")
    writer.Representer = Spelled
    writer.width = 100
    writer.dump(grid, out)
    return out.getvalue()


def _named(grid: Any, name: str) -> None:
    """Set the grid's name, since the default is the name of the file."""
    if "name" in grid:
        grid["name"] = name
    else:
        insert: Any = getattr(grid, "insert")  # noqa: B009
        insert(0, "name", name)


def _remaining_axes(data: SweepData, without: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides of the recorded launch. Deletions (`~key`), the name and the keys in
    `without` are left out."""
    given = () if data.plan is None else data.plan.overrides
    keys = [o.lstrip("~").partition("=")[0].strip() for o in given]
    return tuple(
        override
        for override, key in zip(given, keys, strict=True)
        if not override.startswith("~") and key not in without and key != "name"
    )


def _extend(data: SweepData, text: str, edges: Sequence[Mapping[str, Any]]) -> NextGrid | str:
    grid = _parsed(text, comments=True)
    if isinstance(grid, str):
        return grid
    axes: Any = grid.get("grid")
    if not hasattr(axes, "get"):
        return "the grid has no section `grid` to which a value could be added"
    done: list[str] = []
    more = 1.0
    for edge in edges:
        key, new = edge["axis"], edge["suggestion"]
        values: Any = axes.get(key)
        planned: list[Any] = data.axes.get(key) or []
        if not hasattr(values, "insert") or not planned or new in planned:
            continue
        if len(values) != len(planned):
            values[:] = planned  # an override had replaced the values
        first = edge["side"] == "smallest" and planned[0] == edge["value"]
        at = 0 if first else len(planned)
        values.insert(at, new)
        more *= (len(planned) + 1) / len(planned)
        done.append(key)
    if not done:
        names = labels.listed([str(edge["axis"]) for edge in edges])
        return f"{names} is not a plain list in its `grid`"
    _named(grid, data.name)
    changed = labels.listed(done)
    why = f"{changed} one value further; finished runs are kept."
    title = f"{data.name} with {changed} extended. Finished runs are kept."
    runs = round(len(data.runs) * more) - len(data.runs)
    return NextGrid("extend", why, _written(grid, title), _remaining_axes(data, done), runs)


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
    """Return a copy of a list or mapping that ruamel writes as a single line of YAML."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    made: Any = CommentedSeq(value) if isinstance(value, list) else CommentedMap(value)
    made.fa.set_flow_style()
    return made


def _confirm(
    data: SweepData,
    top: Sequence[Cell],
    label: str,
    text: str,
    needed: int | None,
    most: int = _CELLS,
) -> NextGrid | str:
    """Return a grid with the first `most` cells of `top` on new seeds, or why there is none."""
    grid = _parsed(text, comments=False)
    if isinstance(grid, str):
        return grid
    cells = top[:most]
    runs = max(cell.summary.n for cell in cells)
    # Plan at most three times as many runs as the sweep had, but enough seeds to estimate noise.
    most_seeds = _DEAR * len(data.own_runs) // len(cells)
    count = max(min(max(needed or 2 * runs, runs + 1), most_seeds), _FEWEST)
    seeds = {"seeds": grid.get("seeds")}
    _set_seeds(seeds, _fresh(data, count))
    include = [_inline(_chosen(data, cell)) for cell in cells]
    # The order of the grid file: settings, axes, execution.
    before = {key: grid[key] for key in ("recipe", "service", "base") if key in grid}
    after = {key: grid[key] for key in grid if key not in (*_AXES, "name", "seeds", *before)}
    name = f"{data.name}-confirm"
    made = {"name": name, **before, "include": include, **seeds, **after}
    chosen_text = (
        label if label and len(cells) == len(top) else f"the first {len(cells)} of {len(top)} cells"
    )
    subject = plural(len(cells), "cell")
    subject = subject if len(cells) == len(top) else f"The first {len(cells)} of {len(top)} cells"
    why = (
        f"{subject} at the top on {count} fresh seeds each, because the runs that chose them make "
        "them look too good."
    )
    title = f"{data.name}: {chosen_text}, on fresh seeds."
    overrides = _remaining_axes(
        data, [*(key for cell in cells for key in cell.settings), *data.axes]
    )
    yaml = _written(made, title)
    return NextGrid("confirm", why, yaml, overrides, len(cells) * count, len(cells))


def _chosen(data: SweepData, cell: Cell) -> dict[str, Any]:
    """Return the settings that define a cell: settings that vary, and axes with only one value."""
    config = dict(dotted(cell.runs[0].config))
    alike = {
        key: value
        for key, value in config.items()
        if any(key == axis or key.startswith(f"{axis}.") for axis in data.axes)
    }
    return {**alike, **cell.settings}


def _seeds(data: SweepData, ranking: Ranking, text: str) -> NextGrid | str:
    grid = _parsed(text, comments=True)
    if isinstance(grid, str):
        return grid
    _set_seeds(grid, _FEWEST)
    _named(grid, data.name)
    runs = len(ranking.cells) * _FEWEST - len(data.runs)
    if runs <= 0:
        return "every cell has three seeds already"
    why = "Three seeds per cell: the fewest that separate noise from effect."
    title = f"{data.name} with three seeds per cell."
    return NextGrid("seeds", why, _written(grid, title), _remaining_axes(data, []), runs)
