"""Draws the stages of a sweep as a tree: each stage, with its number of runs, below the first stage
that it starts from."""

from collections.abc import Iterator

from sweeper.sweep.labels import plural
from sweeper.sweep.plan import Plan, Stage
from sweeper.sweep.stage_inputs import Source
from sweeper.sweep.stage_runs import depths

_MORE = "not known yet"


def graph(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each stage: its indented name, its number of runs, and a description of its
    recipe and sources."""
    deep = depths(plan.stages)
    for stage in _below(plan, None):
        runs = plan.only(stage.name)
        planned = [run for run in runs.runs if not run.retired]
        unknown = plan.unknown.get(stage.name, 0)
        words = size(runs._replace(runs=tuple(planned))) if planned or not unknown else ""
        more = f"{plural(unknown, 'run')} {_MORE}" if unknown else ""
        indent = "  " * deep[stage.name]
        yield f"{indent}{stage.name}", ", and ".join(filter(None, (words, more))), of_stage(stage)


def _below(plan: Plan, above: str | None) -> Iterator[Stage]:
    """Yield the stages whose first source is the stage `above` (None: stages without a source
    stage). Each stage is followed by the stages below it."""
    for stage in plan.stages:
        if (stage.before[0] if stage.before else None) == above:
            yield stage
            yield from _below(plan, stage.name)


def of_stage(stage: Stage) -> str:
    """Describe the recipe and the sources of a stage: `dpo, from the best of sft and the base
    model`."""
    recipe = " ".join(stage.recipe.reference.split())
    recipe = recipe if len(recipe) <= 40 else f"{recipe[:37]}..."
    words = " and ".join(map(_words, stage.sources))
    return f"{recipe}, from {words}" if words else recipe


def _words(source: Source) -> str:
    return "the base model" if source.base else " with ".join(take.words for take in source.takes)


def size(plan: Plan) -> str:
    """Describe the size of a plan: `4 cells x 3 seeds, 12 runs`."""
    counts: dict[str, int] = {}
    for run in plan.runs:
        counts[run.cell] = counts.get(run.cell, 0) + 1
    each = set(counts.values())
    times = f" x {each.pop()} seeds" if len(each) == 1 and len(plan.runs) > len(counts) else ""
    return f"{plural(len(counts), 'cell')}{times}, {plural(len(plan.runs), 'run')}"
