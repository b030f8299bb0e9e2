"""Makes the runs of later stages from templates and parents. Some parents are known from the
plan; others are chosen, and recorded, once a stage has ended."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sweeper.sweep.names import shorten
from sweeper.sweep.plan import Plan, Run, Stage
from sweeper.sweep.stage_inputs import (
    LATE,
    PARENT,
    Choice,
    Dropped,
    Source,
    Take,
    choice_of,
    filled,
    run_of_parents,
)

_MODEL = "model_name"

Taken = Callable[[Choice], Sequence[str] | None]
"""A function that returns the ids of the chosen runs, or None if the choice was not made yet."""


class Growth(NamedTuple):
    """The result of `grow`. `runs` are the runs known so far, in the order of the stages, followed
    by retired runs. `choices` are the choices that were not made yet. `unknown` maps a stage to the
    largest number of runs that these choices may add to the stage."""

    runs: tuple[Run, ...]
    choices: tuple[Choice, ...]
    unknown: dict[str, int]


def grown(plan: Plan, taken: Taken) -> Plan:
    """Return the plan with all runs that follow from the choices made so far."""
    if not plan.stages:
        return plan
    growth = grow(plan, taken)
    return plan._replace(runs=growth.runs, unknown=growth.unknown, choices=growth.choices)


def grow(plan: Plan, taken: Taken) -> Growth:
    return _Growing(plan, taken).all()


def depths(stages: Iterable[Stage]) -> dict[str, int]:
    """Return {stage: depth}. The depth is the number of earlier stages in the longest chain that
    leads to the stage."""
    depth_of: dict[str, int] = {}
    for stage in stages:  # Parents come first.
        depth_of[stage.name] = max((depth_of[name] + 1 for name in stage.before), default=0)
    return depth_of


def lineage(run: Run, runs: Mapping[str, Run]) -> Iterator[Run]:
    """Yield the ancestors of a run, parents first. Each ancestor is yielded once."""
    seen: set[str] = set()
    nearest = list(run.parents)
    while nearest:
        yield from (runs[run_id] for run_id in nearest if run_id in runs)
        seen.update(nearest)
        further = (runs[run_id].parents for run_id in nearest if run_id in runs)
        above = dict.fromkeys(run_id for parents in further for run_id in parents)
        nearest = [run_id for run_id in above if run_id not in seen]


def value_of(plan: Plan, run: Run, key: str) -> object:
    """Return the value of a key in a run's configuration, or the recipe's default. Raises
    `KeyError` if there is neither."""
    if key in run.config:
        return run.config[key]
    stage = plan.stage(run.stage)
    about = (plan.recipe if stage is None else stage.recipe).takes.get(key, {})
    return about["default"]


class _Growing:
    """The runs of one plan, made stage by stage."""

    def __init__(self, plan: Plan, taken: Taken) -> None:
        self._plan, self._taken = plan, taken
        self._known = {run.id: run for run in plan.runs}
        self._names = {run.name for run in plan.runs}
        self._made: dict[str, Run] = {}
        self._of: dict[str, list[Run]] = {}
        self._unknown: dict[str, int] = {}
        self._choices: dict[str, Choice] = {}
        self._taken_of: dict[Take, list[Run] | None] = {}

    def all(self) -> Growth:
        roots: dict[str, list[Run]] = {}
        for run in self._plan.runs:
            if run.stage is not None and not run.retired:
                roots.setdefault(run.stage, []).append(run)
        for stage in self._plan.stages:
            children = self._children(stage) if stage.sources else roots.get(stage.name, ())
            fresh = {run.id: run for run in children if run.id not in self._made}
            self._made |= fresh
            self._of[stage.name] = list(fresh.values())
            unknown = sum(map(self._to_come, stage.sources))
            self._unknown[stage.name] = unknown * len(stage.runs)
        retired = [r._replace(retired=True) for r in self._plan.runs if r.id not in self._made]
        runs = (*self._made.values(), *retired)
        unknown = {stage: count for stage, count in self._unknown.items() if count}
        return Growth(runs, tuple(self._choices.values()), unknown)

    def _children(self, stage: Stage) -> Iterator[Run]:
        for source in stage.sources:
            if source.base:
                for model in self._models():
                    for template in stage.runs:
                        yield self._of_base(stage, template, model)
                continue
            offered = [self._parents(take) for take in source.takes]
            for parents in itertools.product(*offered):
                for template in stage.runs:
                    yield self._child(stage, template, source, parents)

    def _parents(self, take: Take) -> list[Run]:
        return self._taken_by(take) or []

    def _taken_by(self, take: Take) -> list[Run] | None:
        """Return the runs that `take` selects, or None if they are not chosen yet."""
        if take not in self._taken_of:  # The stage has all its runs now.
            self._taken_of[take] = self._take(take)
        return self._taken_of[take]

    def _take(self, take: Take) -> list[Run] | None:
        runs = self._of[take.stage]
        if take.how == "each":
            return runs
        if take.how == "run":
            return [run for run in runs if take.run in (run.name, run.name.partition("/")[2])]
        stage = self._plan.stage(take.stage)
        if self._unknown[take.stage] or not runs or stage is None or stage.metric is None:
            return None
        choice = choice_of(take, stage.metric, [run.id for run in runs])
        chosen = self._taken(choice)
        if chosen is None:
            self._choices[choice.key] = choice
            return None
        by_id = {run.id: run for run in runs}
        return [by_id[run] for run in chosen if run in by_id]

    def _to_come(self, source: Source) -> int:
        """Return how many combinations of parents may still be added."""
        if source.base:
            return 0
        now_known = math.prod(len(self._parents(take)) for take in source.takes)
        return math.prod(map(self._expected_of, source.takes)) - now_known

    def _expected_of(self, take: Take) -> int:
        """Return the largest number of runs that `take` may select in the end."""
        taken, runs = self._taken_by(take), self._of[take.stage]
        if take.how == "each":
            return len(runs) + self._unknown[take.stage]
        if take.how == "run":
            return 1
        if taken is not None:
            return len(taken)
        if take.how == "top":
            return min(take.number, len(runs) + self._unknown[take.stage])
        cells = [run.cell for run in runs] if take.how == "best-cell" else []
        return max(Counter(cells).values(), default=1)

    def _models(self) -> list[str]:
        """Return the base models that the sweep starts from."""
        models: dict[str, None] = {}
        roots = [run for s in self._plan.stages if not s.sources for run in self._of[s.name]]
        for run in roots:
            try:
                model = value_of(self._plan, run, _MODEL)
            except KeyError:
                continue
            if isinstance(model, str):
                models[model] = None
        return list(models)

    def _of_base(self, stage: Stage, template: Run, model: str) -> Run:
        def find(_: str, key: str) -> object:
            if key != _MODEL:
                raise Dropped
            return model

        several = len(self._models()) > 1
        pieces = [f"base={_safe(model)}" if several else "base"]
        config = filled(template.config, find)
        identity = run_of_parents(stage.name, template.id, [f"base:{model}"])
        run = Run(identity, "", "", template.seed, config, stage=stage.name)
        return self._named(template, pieces, run)

    def _child(self, stage: Stage, template: Run, source: Source, parents: tuple[Run, ...]) -> Run:
        by_stage: dict[str, Run] = {}
        for run in (
            *parents,
            *itertools.chain(*(lineage(parent, self._made) for parent in parents)),
        ):
            by_stage.setdefault(run.stage or "", run)
        by_stage[PARENT] = parents[0]

        def find(name: str, key: str) -> object:
            if key in LATE or name not in by_stage:
                return f"${{{name}.{key}}}"
            try:
                return value_of(self._plan, by_stage[name], key)
            except KeyError:
                return f"${{{name}.{key}}}"

        seed, pieces = template.seed, list[str]()
        for take, parent in zip(source.takes, parents, strict=True):
            if not take.many:
                # This part of the name distinguishes runs of different sources.
                if len(stage.sources) > 1:
                    pieces.append(parent.name if take.how == "run" else f"{take.stage}-{take.how}")
                continue
            # A run without a seed gets its parent's seed.
            takes_seed = seed is None and parent.seed is not None
            seed = parent.seed if takes_seed else seed
            label = parent.cell if takes_seed or parent.seed is None else parent.name
            pieces.append(label.removesuffix("/base"))  # the only cell of its stage
        identity = run_of_parents(stage.name, template.id, [run.id for run in parents])
        config = filled(template.config, find)
        ids = tuple(run.id for run in parents)
        child = Run(identity, "", "", seed, config, stage=stage.name, parents=ids)
        return self._named(template, pieces, child)

    def _named(self, template: Run, pieces: Sequence[str], run: Run) -> Run:
        """Return `run`, which was made from `template`, with a name and a cell. `pieces` are the
        parts of the name that identify the run's parents."""
        labels = [template.cell] if template.cell != "base" or not pieces else []
        cell = shorten(f"{run.stage}/{','.join([*labels, *pieces])}")
        tail = _seed_in(template)
        if run.seed is not None and template.seed is None:
            tail = f"seed={run.seed}"
        name = f"{cell},{tail}" if tail else cell
        if tail and template.cell == "base" and not pieces:
            name = f"{run.stage}/{tail}"
        name = shorten(name)
        earlier = self._known.get(run.id)
        if earlier is not None:
            name = earlier.name
        # A run of an earlier grid has this name, or a run whose parent was chosen earlier.
        elif name in self._names:
            name = f"{name}~{run.id[:6]}"
        self._names.add(name)
        return run._replace(name=name, cell=cell)


def _seed_in(run: Run) -> str:
    """Return the part of a run's name with the seed, such as `seed=3`, or ""."""
    match = re.search(rf"(?:^|,)([^,=]+={re.escape(str(run.seed))})$", run.name)
    return match[1] if match and run.seed is not None and run.name != run.cell else ""


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", text)[-40:]
