"""Compares cells item by item, separately for each task. Pure."""

from collections.abc import Sequence

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Ranking
from sweeper.analysis.comparison.items import Compared, ItemCell, Parted, compare
from sweeper.analysis.findings.finding import Finding, short_name
from sweeper.analysis.reading.frames import RunData, SweepData
from sweeper.results.items import Answered
from sweeper.sweep.labels import plural


def by_items(data: SweepData, ranking: Ranking) -> list[Compared]:
    """Return a comparison for each task with recorded answers. Held-out tasks come before training
    tasks. In both groups, a task that the metric belongs to comes first. A cell is compared only if
    each of its counted runs has answers."""
    tasks = dict.fromkeys(entry.task for run in data.runs for entry in run.items)
    compared = [result for task in tasks if (result := _of_task(data, ranking, task)) is not None]
    metric = data.metric_name or ""
    return sorted(
        compared, key=lambda entry: (entry.training, not of_metric(entry.task, metric), entry.task)
    )


def of_metric(task: str, metric: str) -> bool:
    """Return whether a metric belongs to this task, as `eval/gsm8k/score` belongs to `gsm8k`."""
    return bool(task) and task in metric.split("/")


def _of_task(data: SweepData, ranking: Ranking, task: str) -> Compared | None:
    cells: dict[str, list[dict[str, float]]] = {}
    answered: list[Answered] = []
    for cell in ranking.cells:
        runs = counting(data, cell.runs)
        answers = [entry for run in runs for entry in run.items if entry.task == task]
        if runs and len(answers) == len(runs):
            cells[cell.name] = [dict(entry.scores) for entry in answers]
            answered += answers
    prompts = {item: text for entry in answered for item, text in entry.prompts.items()}
    clusters = {item: name for entry in answered for item, name in entry.clusters.items()}
    errors = sum(entry.errors for entry in answered)
    training = any(entry.training for entry in answered)
    return compare(cells, task, prompts, clusters, errors, training=training)


def counting(data: SweepData, runs: Sequence[RunData]) -> list[RunData]:
    """Return the runs that count in the comparison of cells. Without a metric, return all runs
    that succeeded."""
    if data.metric is None:
        return [run for run in runs if run.state == "succeeded"]
    return [run for run in runs if run.counts]


def item_findings(compared: Sequence[Compared], ranking: Ranking) -> list[Finding]:
    """Return a finding that compares the best cell of the first task with the other cells. The list
    is empty without tasks, and if the first task is for training or has only one cell."""
    if not compared or compared[0].training or len(compared[0].cells) < 2:
        return []
    first = compared[0]
    names = {cell.name: short_name(cell) for cell in ranking.cells}
    best = first.cells[0]
    mean, low, high = labels.within(best.mean, best.low, best.high)
    where = f"{plural(first.items, 'question')}" + (f" of {first.task}" if first.task else "")
    text = (
        f"Item by item, on {where}: {names[best.cell]} scores {mean} ({low} to {high}). "
        f"{_standing(first, names)}. {_of_what(first)}"
    )
    apart = [side.cell for side in first.parted if side.told_apart]
    evidence = {"task": first.task, "items": first.items, "told_apart": apart}
    level = "good" if apart and len(apart) == len(first.parted) else "note"
    return [Finding("items", level, text, (best.cell,), evidence)]


def _standing(compared: Compared, names: dict[str, str]) -> str:
    apart = [side for side in compared.parted if side.told_apart]
    if not apart and len(compared.parted) > 1:
        return f"Any of the {len(compared.parted)} other cells may be as good"
    if not apart:
        return f"{names[compared.cells[1].cell]} may be as good"
    nearest = min(apart, key=lambda side: -side.difference)
    by = " to ".join(labels.together(*sorted((-nearest.high, -nearest.low))))
    text = f"It is ahead of {names[nearest.cell]} by {by}"
    if len(apart) > 1:
        text += f" and of {plural(len(apart) - 1, 'more cell')}"
    left = len(compared.parted) - len(apart)
    return text + (f"; {plural(left, 'other cell')} may be as good" if left else "")


def _of_what(compared: Compared) -> str:
    """Say whether the intervals of a comparison are over questions only, or also over runs."""
    sides: list[ItemCell | Parted] = [*compared.cells, *compared.parted]
    if any(side.over == "items" for side in sides):
        return (
            "The intervals are over questions: they show how these models would score on more such "
            "questions, not how models of other seeds would score."
        )
    return "The intervals are over questions and runs."
