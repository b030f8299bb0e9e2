"""Finds the runs of a report: in sweeps, or in any folder with runs."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sweeper.analysis import labels
from sweeper.analysis.reading.run_keys import NO_KEYS, OwnKeys, as_text, is_place, own_keys
from sweeper.common.atomic import atomic_write
from sweeper.errors import NotFound, StoreError, UsageError
from sweeper.results.marks import marked
from sweeper.results.registry import Registry
from sweeper.results.runs import RecordedRun
from sweeper.results.selectors import current
from sweeper.results.sweeps import Sweep, SweepRun
from sweeper.store.documents import dotted
from sweeper.store.opening import open_store
from sweeper.sweep.marks import Marks
from sweeper.sweep.plan import Plan
from sweeper.sweep.stage_inputs import PARENT, references


@dataclass(frozen=True)
class Placed:
    """A run with its cell, seed, state and configuration in a report. For a run in a plain folder,
    `config` lacks the keys that identify runs. If the recorded state of such a run is unknown,
    `state` is "succeeded" and `assumed` is set."""

    run: RecordedRun
    cell: str
    seed: int | None
    state: str
    config: Mapping[str, Any]
    assumed: bool = False


@dataclass(frozen=True)
class Source:
    """A sweep, a `stage` of a sweep, or a folder that is treated as a sweep. `retired` counts
    runs that the grid no longer contains. For the first source of a report, `others` has the names
    of the other sources. For a folder, `own_keys` has the configuration keys that are not
    settings."""

    name: str
    registry: Registry
    plan: Plan | None
    metric: Mapping[str, str] | None
    axes: Mapping[str, list[Any]]
    runs: tuple[Placed, ...]
    retired: int
    sweep: Sweep | None
    stage: str | None = None
    others: tuple[str, ...] = ()
    own_keys: OwnKeys = NO_KEYS

    @property
    def root(self) -> str:
        """The store of the sweep; "" for a folder."""
        return "" if self.sweep is None else self.sweep.root

    @property
    def path(self) -> str:
        """The path of the sweep's folder or of the plain folder; an address on a remote store."""
        return self.registry.roots[0] if self.sweep is None else self.sweep.path

    @property
    def place_of_runs(self) -> str:
        """A path or address that no other source has: `path`, followed by the stage if any."""
        return self.path if self.stage is None else f"{self.path}/{self.stage}"

    def place(self, name: str) -> str:
        """Return the path or address at which `write` stores the file `name`."""
        return f"{self.path.rstrip('/')}/report/{self._below(name)}"

    def _below(self, name: str) -> str:
        together = f"with-{_file_name('+'.join(self.others))}" if self.others else None
        return "/".join(part for part in (self.stage, together, name) if part)

    def write(self, files: Mapping[str, bytes]) -> list[str]:
        """Write files to the report's folder, and return their paths. `files` maps names to
        contents."""
        if self.sweep is not None:
            below = {self._below(name): content for name, content in files.items()}
            return self.sweep.write_report(below)
        return [self._write(name, content) for name, content in files.items()]

    def _write(self, name: str, content: bytes) -> str:
        if "://" in self.path:
            open_store(self.path).replace(f"report/{self._below(name)}", content)
            return self.place(name)
        folder = os.path.join(self.path, "report")
        if os.path.islink(folder):  # the owner of the folder may have made it a link to anywhere
            raise UsageError(
                f"{folder} is a symbolic link: choose a folder for the report with --out"
            )
        below, _, last = self._below(name).rpartition("/")
        return write_file(os.path.join(folder, below), last, content)


_LONGEST = 80


def _file_name(text: str) -> str:
    plain = re.sub(r"[^\w.=+-]+", "-", text).strip("-.")
    if plain == text and len(plain) <= _LONGEST:
        return plain
    return f"{plain[:_LONGEST]}~{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:6]


def find_sources(registry: Registry, names: Sequence[str], keys: OwnKeys = NO_KEYS) -> list[Source]:
    """Return a source for each name: the sweep with this name, else the folder with this path. If
    several sources have the same name, their paths become their names. `keys` has the keys that the
    user ignores or names as seeds. Raises `NotFound` if a name is neither a sweep nor a folder with
    runs, and `UsageError` if the user chose keys for a sweep or keys that no run has."""
    sources = [_find(registry, name, keys) for name in names]
    _check_keys(sources, keys)
    counts = Counter(source.name for source in sources)
    first, *rest = [
        replace(source, name=source.place_of_runs) if counts[source.name] > 1 else source
        for source in sources
    ]
    return [replace(first, others=tuple(source.name for source in rest)), *rest]


def _check_keys(sources: Sequence[Source], keys: OwnKeys) -> None:
    for option, names in (("--ignore", keys.ignored), ("--seed", keys.named)):
        planned = [source.name for source in sources if source.plan is not None]
        if names and planned:
            raise UsageError(
                f"{option} works only for folders of runs; {planned[0]} is a sweep, and its grid "
                "already defines its cells"
            )
        held = {key for source in sources for p in source.runs for key, _ in dotted(p.run.config)}
        lacking = [key for key in names if key not in held]
        if lacking:
            shown = ", ".join(sorted(held)[:12]) or "none"
            raise UsageError(f"{option} {lacking[0]}: no configuration has this key; keys: {shown}")


def _find(registry: Registry, name: str, keys: OwnKeys) -> Source:
    above, stage = registry.split(name)
    staged = _with_stages(registry, above) if stage and "/" not in stage else None
    if staged is not None:
        return _of_stage(registry, staged, stage)
    try:
        return _of_sweep(registry, registry.sweep(name))
    except (NotFound, StoreError) as error:  # StoreError: a path, which cannot be a sweep's name
        for path in _folders(registry, name):
            source = _of_folder(path, keys)
            if source is not None:
                return source
        if os.path.isdir(name) or os.sep in name:
            raise NotFound(f"{name} is neither a sweep nor a folder with runs") from error
        raise


def _with_stages(registry: Registry, name: str) -> Sweep | None:
    try:
        sweep = registry.sweep(name)
    except (NotFound, StoreError):
        return None
    return sweep if sweep.plan.stages else None


def _folders(registry: Registry, name: str) -> list[str]:
    if "://" in name:
        return [name]
    here = [os.path.abspath(name)] if os.path.isdir(name) else []
    if name.partition("/")[0] in ("", ".", ".."):
        return here
    below = [f"{root.rstrip('/')}/{name}" for root in registry.roots]
    return [*(path for path in below if "://" in path or os.path.isdir(path)), *here]


def _of_sweep(registry: Registry, sweep: Sweep) -> Source:
    if sweep.plan.stages:
        names = ", ".join(f"{sweep.name}/{stage.name}" for stage in sweep.plan.stages)
        raise UsageError(f"{sweep.name} has stages: name one of {names}")
    runs, retired = _placed(sweep.runs)
    return Source(sweep.name, registry, sweep.plan, sweep.metric, sweep.axes, runs, retired, sweep)


def _of_stage(registry: Registry, sweep: Sweep, stage: str) -> Source:
    if sweep.plan.stage(stage) is None:
        names = ", ".join(entry.name for entry in sweep.plan.stages) or "none"
        raise NotFound(f"no stage {stage!r} in {sweep.name}: choose from {names}")
    plan = sweep.plan.only(stage)
    cells = {run.id: run.cell for run in sweep.runs}
    runs, retired = _placed([run for run in sweep.runs if run.stage == stage])
    if any(placed.run.parents for placed in runs):
        runs = tuple(replace(placed, config=_going_on(placed, cells)) for placed in runs)
    name, metric = f"{sweep.name}/{stage}", sweep.metric_of(stage)
    return Source(name, registry, plan, metric, plan.axes, runs, retired, sweep, stage)


def _going_on(placed: Placed, cells: Mapping[str, str]) -> dict[str, Any]:
    above = [cells[parent] for parent in placed.run.parents if parent in cells]
    config = {k: v for k, v in placed.config.items() if next(references(v), None) is None}
    return {PARENT: ", ".join(above) or "the base model", **config}


def _placed(runs: Sequence[SweepRun]) -> tuple[tuple[Placed, ...], int]:
    latest = current(runs)
    placed = (Placed(run, run.cell, run.seed, run.state.value, run.config) for run in latest)
    return tuple(placed), len(runs) - len(latest)


def _of_folder(path: str, keys: OwnKeys) -> Source | None:
    registry = Registry(path)
    runs = registry.handles()
    if not runs:
        return None
    configs = [dict(dotted(run.config)) for run in runs]
    found = own_keys(configs, keys.ignored, keys.named)
    out = {
        *found.seeds,
        *found.left_out,
        *(key for config in configs for key in config if is_place(key)),
    }
    out |= set(found.ignored)
    remaining = [
        {key: value for key, value in config.items() if key not in out} for config in configs
    ]
    names = [run.name if run.sweep == "." else f"{run.sweep}/{run.name}" for run in runs]
    cells = _cell_names(names, remaining)
    placed: list[Placed] = []
    for run, cell, config, whole in zip(runs, cells, remaining, configs, strict=True):
        sure = run.state.value != "unknown"
        state = run.state.value if sure else "succeeded"
        placed.append(Placed(run, cell, _seed(whole, found.seeds), state, config, assumed=not sure))
    name = path.rstrip("/").rpartition("/")[2]
    return Source(name, registry, None, None, {}, tuple(placed), 0, None, own_keys=found)


def _cell_names(names: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    same = [
        as_text(config) if config else name for name, config in zip(names, configs, strict=True)
    ]
    if len(set(same)) == len(same):
        return list(names)
    keys = dict.fromkeys(key for config in configs for key in config)
    varied = [key for key in keys if len({as_text(config.get(key)) for config in configs}) > 1]
    texts = [
        ",".join(f"{key}={labels.setting(config[key])}" for key in varied if key in config)
        for config in configs
    ]
    taken: dict[str, set[str]] = {}
    for text, cell in zip(texts, same, strict=True):
        taken.setdefault(text[:_LONGEST], set()).add(cell)
    return [
        text
        if len(taken[text[:_LONGEST]]) == 1 and len(text) <= _LONGEST
        # Long names, and names of settings that look the same, get a hash.
        else f"{text[:_LONGEST]}~{_digest(cell)}"
        for text, cell in zip(texts, same, strict=True)
    ]


def _seed(config: Mapping[str, Any], keys: Sequence[str]) -> int | None:
    values = {config[key] for key in keys if key in config}
    value = values.pop() if len(values) == 1 else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def write_file(folder: str, name: str, content: bytes) -> str:
    """Write a file of a report atomically, create its folder if needed, and return its path. A
    symbolic link of that name is replaced, not followed. Raises `UsageError` if `folder` cannot
    be a folder, and `StoreError` if the file cannot be written."""
    try:
        os.makedirs(folder, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UsageError(f"the folder {folder!r} cannot be created ({_why(error)})") from error
    path = os.path.abspath(os.path.join(folder, name))
    try:
        atomic_write(path, content, mode=0o666)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({_why(error)})") from error
    return path


def _why(error: OSError | ValueError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


class Confirmed(NamedTuple):
    """A sweep and the sweeps that confirm it, read as one study. The sweep `first` has `cells`
    cells; the sweeps `fresh` repeat some or all of these cells on new seeds. `names` maps the
    configuration of each repeated cell, as a string, to the cell's name in the first sweep. The
    report shows the first runs of a repeated cell, but judges the cell only by its new runs. (Cells
    are repeated because their first runs were good, partly by chance.)"""

    first: str
    cells: int
    fresh: tuple[str, ...]
    names: Mapping[str, str]

    seed_field: str

    def cell(self, placed: Placed) -> str | None:
        """Return the name of a run's cell in the first sweep; None if the cell was not repeated."""
        return self.names.get(_place(placed, self.seed_field))


def _place(placed: Placed, seed_field: str) -> str:
    config = {key: value for key, value in placed.config.items() if key != seed_field}
    return as_text(config)


def confirmation(sources: Sequence[Source]) -> Confirmed | None:
    """Return the study of a first sweep and the sweeps that repeat its cells on new seeds and with
    the same recipe. Return None if there is no such first sweep. Each repeating sweep must be newer
    than the first sweep or have the first sweep's name with the suffix `-confirm`. If all cells are
    repeated, this suffix is required."""
    recipes = {source.plan and source.plan.recipe.reference for source in sources}
    if len(sources) < 2 or len(recipes) > 1 or None in recipes:
        return None
    plan = sources[0].plan
    field = (plan and plan.recipe.seed_field) or "seed"
    placed = [[(_place(run, field), run) for run in source.runs] for source in sources]
    for first, first_runs in zip(sources, placed, strict=True):
        cells = {at: run.cell for at, run in first_runs}
        seeds = {(at, run.seed) for at, run in first_runs}
        repeats = [(at, run.seed) for runs in placed if runs is not first_runs for at, run in runs]
        repeated = {at for at, _ in repeats}
        rest = [source for source in sources if source is not first]
        # If all cells were repeated, only the names show which sweep was first.
        whole = repeated == cells.keys() and all(_named(source, first) for source in rest)
        partly = bool(repeated) and repeated < cells.keys()
        partly = partly and all(_named(source, first) or _later(source, first) for source in rest)
        if (partly or whole) and not seeds.intersection(repeats):
            names = {at: cell for at, cell in cells.items() if at in repeated}
            fresh = tuple(source.name for source in rest)
            return Confirmed(first.name, len(set(cells.values())), fresh, names, field)
    return None


def _named(source: Source, first: Source) -> bool:
    after = source.name.removeprefix(first.name)
    return source.name != after and re.fullmatch("(-confirm)+", after) is not None


def _later(source: Source, first: Source) -> bool:
    times = [side.plan and side.plan.created for side in (first, source)]
    return bool(times[0] and times[1]) and str(times[0]) < str(times[1])


class Note(NamedTuple):
    """A note about the run named `run`, or about the sweep if `run` is ""."""

    run: str
    text: str
    by: str
    time: str


class Noted(NamedTuple):
    """The `notes`, the oldest first. `tags` maps the name of a run ("" for the sweep) to its
    tags; a star is "*"."""

    notes: tuple[Note, ...] = ()
    tags: Mapping[str, tuple[str, ...]] = {}


NOBODY = Noted()
"""No notes and no tags."""


def read_noted(sources: Sequence[Source]) -> Noted:
    """Read the notes and tags of the sources and of their runs."""
    notes: list[Note] = []
    tags: dict[str, tuple[str, ...]] = {}
    for name, marks in (pair for source in sources for pair in _marks_of(source)):
        several = (*marks.tags, *(["*"] if marks.starred else []))
        if several:
            tags[name] = several
        notes += [Note(name, note.text, note.by, note.time) for note in marks.notes]
    return Noted(tuple(sorted(notes, key=lambda note: note.time)), tags)


def _marks_of(source: Source) -> list[tuple[str, Marks]]:
    if source.sweep is None:
        return []
    names = {placed.run.id: placed.run.name for placed in source.runs}
    marks_read = marked(source.sweep.folder, source.sweep.unreadable)
    runs = [(names[run], marks) for run, marks in marks_read.runs.items() if run in names]
    return [("", marks_read.sweep), *runs]
