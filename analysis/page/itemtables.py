"""Makes the tables that compare cells by questions and tasks, as texts. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.comparison.items import PAIRED, Compared, Item, ItemCell, Parted
from sweeper.analysis.figures.layouts import named_rows
from sweeper.analysis.findings.study import Study
from sweeper.analysis.statistics.seeds import Summary
from sweeper.sweep.labels import plural

_ROWS = 40
_PROMPT = 160
_HELD = 20


def item_tables(study: Study) -> list[dict[str, Any]]:
    """Return a table for each task with recorded answers."""
    named = named_rows(study.ranking)
    return [_table(compared, named) for compared in study.items]


def held_rows(study: Study) -> list[dict[str, Any]]:
    """Return the rows of the table of training and held-out values."""
    if study.held_out is None:
        return []
    named = named_rows(study.ranking)
    return [
        {**named[side.cell], "training": _shown(side.training), "held_out": _shown(side.held_out)}
        for side in study.held_out.sides[:_HELD]
    ]


def task_rows(study: Study) -> list[dict[str, Any]]:
    """Return the rows of the table that compares cells over several tasks."""
    if study.tasks is None:
        return []
    named = named_rows(study.ranking)
    return [
        {
            **named[cell.cell],
            "runs": cell.runs,
            "iqm": labels.within(cell.iqm, cell.low, cell.high)[0],
            "interval": " to ".join(labels.within(cell.iqm, cell.low, cell.high)[1:])
            if cell.low is not None
            else labels.NONE,
            "rest": [f"{value:.3f}" for value in (cell.mean, cell.median, cell.gap)],
            "improves": labels.percent(cell.improves) if position else labels.NONE,
        }
        for position, cell in enumerate(study.tasks.cells[:_ROWS])
    ]


def checkpoint_rows(study: Study) -> list[dict[str, Any]]:
    """Return the rows of the table of checkpoints' scores on suites."""
    if study.checkpoints is None:
        return []
    named, suites = named_rows(study.ranking), study.checkpoints.suites
    return [
        {
            **named[row.cell],
            "checkpoint": row.checkpoint,
            "runs": row.runs,
            "scores": [
                f"{row.scores[suite]:.3f}" if suite in row.scores else labels.NONE
                for suite in suites
            ],
        }
        for row in study.checkpoints.rows[:_ROWS]
    ]


def _shown(summary: Summary) -> tuple[str, str]:
    if summary.low is None or summary.high is None:
        return labels.together(summary.mean)[0], labels.NONE
    mean, low, high = labels.within(summary.mean, summary.low, summary.high)
    return mean, f"{low} to {high}"


def _table(compared: Compared, named: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    parted = {pair.cell: pair for pair in compared.parted}
    shown = compared.cells[:_ROWS]
    return {
        "title": compared.task or "Items",
        "training": compared.training,
        "about": _about(compared),
        "rows": [_row(cell, parted.get(cell.cell), named[cell.cell]) for cell in shown],
        "left": len(compared.cells) - len(shown),
        "names": [named[cell.cell]["name"] for cell in compared.cells[:PAIRED]],
        "beside": bool(compared.alone),
        "lists": [
            _listed("The questions on which cells differ most", compared.apart, open_=True),
            _listed(f"{plural(compared.unsolved_count, 'question')} that no cell solves",
                    compared.unsolved),
        ],
    }  # fmt: skip


def _about(compared: Compared) -> str:
    whole = plural(compared.items, "question")
    parts = [
        f"{whole}, answered by every run"
        + (
            f", out of {compared.known} that at least one run answered"
            if compared.known > compared.items
            else ""
        )
    ]
    if compared.clusters:
        parts.append(f"in {plural(compared.clusters, 'group')} that count together")
    parts.append(f"{compared.solved} solved by all, {compared.unsolved_count} by none")
    if compared.errors:
        parts.append(f"{plural(compared.errors, 'answer')} ended in an error and score 0")
    return "; ".join(parts) + "."


def _row(cell: ItemCell, parted: Parted | None, named: dict[str, Any]) -> dict[str, Any]:
    mean, low, high = labels.within(cell.mean, cell.low, cell.high)
    row = {
        **named,
        "runs": cell.runs,
        "mean": mean,
        "interval": f"{low} to {high}",
        "over": cell.over,
        "difference": "",
        "counts": "",
        "standing": "the best",
    }
    if parted is None:
        return row
    gap, *ends = labels.within(-parted.difference, -parted.high, -parted.low)
    standing = "worse" if parted.told_apart else "may be as good"
    return row | {
        "difference": f"{gap} ({' to '.join(ends)})",
        "counts": f"{parted.better}, {parted.worse}",
        "standing": f"{standing}, {labels.p_value(parted.p)}",
    }


def _listed(title: str, items: Sequence[Item], *, open_: bool = False) -> dict[str, Any]:
    return {
        "title": title,
        "open": open_,
        "items": [
            {
                "prompt": item.prompt[:_PROMPT] + ("…" if len(item.prompt) > _PROMPT else ""),
                "scores": [f"{score:.3g}" for score in item.scores[:PAIRED]],
            }
            for item in items
        ],
    }
