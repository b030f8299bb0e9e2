"""Translates files of SEML: experiments of sacred with fixed, grid and random parameters."""

import ast
import re
from collections.abc import Iterator, Mapping

from sweeper.common.json_values import is_list, is_number, list_of, table_of
from sweeper.fields.nodes import Node, plain
from sweeper.grid.translation import slurm
from sweeper.grid.translation.draft import (
    Draft,
    Reference,
    Untranslatable,
    entries_of,
    interpreter,
    sweep_name,
)

_PARTS = ("fixed", "grid", "random")
_SEML = ("executable", "name", "project_root_dir", "output_dir", "description")


def is_seml(root: Node) -> bool:
    """Return whether a YAML file is a file of SEML."""
    entries = root.entries or {}
    seml = entries["seml"][1].entries if "seml" in entries else None
    return bool(seml and "executable" in seml)


def from_seml(root: Node, source: str, program: str | None) -> Draft:
    """Translate a file of SEML. Raises `Untranslatable`."""
    draft = Draft(source, "SEML")
    top = entries_of(root)
    seml = entries_of(top["seml"][1])
    settings = {key: plain(node) for key, (_, node) in seml.items()}
    draft.name = sweep_name(str(settings.get("name") or ""), source)
    for key, (line, _) in seml.items():
        if key not in _SEML:
            draft.note(line, f"seml.{key} has no counterpart")
        elif key == "output_dir":
            draft.note(line, "seml.output_dir is not used: each run has its own folder")
    if str(settings.get("project_root_dir") or ".") != ".":
        line = seml["project_root_dir"][0]
        draft.note(
            line, "seml.project_root_dir is not used: launch from that folder, or set launch.cwd"
        )
    for node in (top["slurm"][1].items or [top["slurm"][1]]) if "slurm" in top else []:
        _slurm(draft, node)
    blocks = {key: entry for key, entry in top.items() if key not in ("seml", "slurm", *_PARTS)}
    whole = _Block(draft, {key: entry for key, entry in top.items() if key in _PARTS})
    draft.samples, draft.drawing_seed = whole.samples, whole.seed
    for name, value in whole.fixed.items():
        draft.fix(name, value)
    for name, values in whole.grid.items():
        draft.axis(name, values)
    draft.items("zip").extend(whole.zipped)
    for name, how in whole.random.items():
        draft.draw(name, how)
    names = [*whole.names, *_blocks(draft, blocks, whole.names)]
    script = program or str(settings["executable"])
    draft.command = [interpreter(), script, "with"]
    if not names:
        raise Untranslatable("the file has no parameters in fixed, grid or random")
    for name in dict.fromkeys(names):
        draft.command.append(_word(draft, name, everywhere=name in whole.names))
    return draft


def _word(draft: Draft, name: str, *, everywhere: bool) -> str:
    """Return a parameter's text in the command. Without `everywhere`, it is the placeholder of a
    list that is empty in blocks without the parameter."""
    return f"{name}={draft.hole(name)}" if everywhere else f"{{{draft.key(f'{name}_words')}*}}"


def _blocks(
    draft: Draft, blocks: Mapping[str, tuple[int, Node]], shared: list[str]
) -> Iterator[str]:
    """Translate named blocks into the values of one axis. A block's parameters apply only to cells
    with the block's value. Yield the names of each block's parameters. `shared` are the parameters
    outside of blocks."""
    read = {name: _Block(draft, entries_of(node)) for name, (_, node) in blocks.items()}
    read = {name: block for name, block in read.items() if block.names}
    for name, (line, _) in blocks.items():
        if name not in read:
            draft.note(line, f"{name} is not a block with fixed, grid or random")
    if not read:
        return
    axis = draft.key("block")
    draft.mapping("grid")[axis] = list(read)
    if len(read) == 1:
        draft.mapping("base")[axis] = list_of(draft.mapping("grid").pop(axis))[0]
    base = draft.mapping("base")
    for name, block in read.items():
        inside: dict[str, object] = {draft.key(k): value for k, value in block.fixed.items()}
        for key in [key for key in block.names if key not in shared]:
            words = draft.key(f"{key}_words")
            base[words] = []
            inside[words] = [Reference(f"{key}=${{{draft.key(key)}}}")]
        entry: dict[str, object] = {"if": {axis: name}, "base": inside}
        if block.grid:
            entry["grid"] = {draft.key(k): values for k, values in block.grid.items()}
        if block.zipped:
            entry["zip"] = block.zipped
        if block.random:
            axes = {draft.key(k): how for k, how in block.random.items()}
            entry["random"] = {"samples": block.samples or 1, "seed": block.seed, "axes": axes}
        draft.items("when").append(entry)
        yield from block.names
        overlap = [key for key in (*block.grid, *block.random) if key in shared]
        for key in overlap:
            draft.mapping("grid").pop(draft.key(key), None)
            draft.draws.pop(draft.key(key), None)


class _Block:
    """The parameters in `fixed`, `grid` and `random`, with dotted names."""

    def __init__(self, draft: Draft, entries: Mapping[str, tuple[int, Node]]) -> None:
        self.draft = draft
        self.fixed: dict[str, object] = {}
        self.grid: dict[str, object] = {}
        self.random: dict[str, dict[str, object]] = {}
        self.samples: int | None = None
        self.seed = 0
        zipped: dict[str, dict[str, object]] = {}
        for part, (line, node) in entries.items():
            if part == "fixed":
                self.fixed |= {name: _python(plain(item)) for name, _, item in _leaves(node, "")}
            elif part in ("grid", "random"):
                self._read(part, node, "", zipped)
            else:
                draft.note(line, f"{part}: nested blocks have no counterpart")
        self.zipped: list[object] = list(zipped.values())

    @property
    def names(self) -> list[str]:
        """The names of all parameters."""
        zipped = [key for block in self.zipped for key in table_of(block)]
        return list(dict.fromkeys([*self.fixed, *self.grid, *zipped, *self.random]))

    def _read(
        self, part: str, node: Node, above: str, zipped: dict[str, dict[str, object]]
    ) -> None:
        for key, (line, item) in entries_of(node).items():
            name = f"{above}{key}"
            about = {k: plain(inner) for k, (_, inner) in entries_of(item).items()}
            if part == "random" and not above and key in ("samples", "seed"):
                if type(item.value) is int:
                    setattr(self, key, item.value)
            elif about.get("type") == "parameter_collection":
                self._read(part, entries_of(item)["params"][1], f"{name}.", zipped)
            elif "type" not in about:
                self._read(part, item, f"{name}.", zipped)
            elif part == "random":
                self._draw(name, line, about)
            elif (values := _values(about)) is None:
                self.draft.note(line, f"{name}: type {about['type']} has no counterpart")
            elif "zip_id" in about:
                zipped.setdefault(str(about["zip_id"]), {})[name] = values
            else:
                self.grid[name] = values

    def _draw(self, name: str, line: int, about: Mapping[str, object]) -> None:
        how = _drawing(about)
        if how is None:
            self.draft.note(line, f"{name}: type {about['type']} has no counterpart")
        else:
            self.random[name] = how
        if "samples" in about or "seed" in about:
            self.draft.note(line, f"{name}: samples and seed are set for all parameters together")


def _leaves(node: Node, above: str) -> Iterator[tuple[str, int, Node]]:
    """Yield each value of nested mappings as (dotted name, line, node)."""
    for key, (line, item) in entries_of(node).items():
        if item.entries:
            yield from _leaves(item, f"{above}{key}.")
        else:
            yield f"{above}{key}", line, item


def _values(about: Mapping[str, object]) -> object | None:
    """Translate a parameter in `grid` to a list or a range. Return None if that is not possible."""
    kind, options = about["type"], about.get("options")
    low, high, count = about.get("min"), about.get("max"), about.get("num", about.get("step", 1))
    if kind == "choice" and is_list(options):
        return [_python(value) for value in options]
    if not (is_number(low) and is_number(high) and is_number(count)):
        return None
    names = {"range": "range", "uniform": "linspace", "loguniform": "logspace"}
    return {names[str(kind)]: [low, high, count]} if kind in names else None


def _drawing(about: Mapping[str, object]) -> dict[str, object] | None:
    kind, options = about["type"], about.get("options")
    low, high = about.get("min"), about.get("max")
    if kind == "choice" and is_list(options):
        return {"choice": [_python(value) for value in options]}
    if not (is_number(low) and is_number(high)):
        return None
    if kind in ("randint", "randint_unique"):
        return {"integers": [low, int(high) - 1]}  # SEML never draws `high` itself.
    names = {"uniform": "uniform", "loguniform": "log_uniform"}
    return {names[str(kind)]: [low, high]} if kind in names else None


def _python(value: object) -> object:
    """Return a value in Python's notation, which sacred expects on the command line."""
    if isinstance(value, str):
        try:
            ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return value
        return repr(value)
    return value if is_number(value) else repr(value)


def _slurm(draft: Draft, node: Node) -> None:
    for key, (line, item) in entries_of(node).items():
        if key == "sbatch_options":
            for name, (place, value) in entries_of(item).items():
                slurm.add_option(draft, place, name, plain(value))
        elif key == "max_simultaneous_jobs" and type(item.value) is int:
            draft.mapping("launch")["max_parallel"] = item.value
        elif key == "experiments_per_job" and item.value == 1:
            continue
        else:
            draft.note(line, f"slurm.{key} has no counterpart")
    if not re.search("slurm", str(draft.sections.get("launch"))):
        draft.mapping("launch")["backend"] = "slurm"
