"""Makes the rows of the tables of cells by questions, as texts. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Ranking
from sweeper.analysis.comparison.items import PAIRED, Compared, Item, ItemCell, Parted
from sweeper.analysis.figures.learning_curves import row_tones
from sweeper.analysis.findings.finding import short_name
from sweeper.analysis.findings.study import Study
from sweeper.analysis.statistics.seeds import Summary
from sweeper.sweep.labels import plural

_ROWS = 40
_PROMPT = 160
_HELD = 20


def item_tables(study: Study) -> list[dict[str, Any]]:
    """A table for each task with recorded answers."""
    named = named_rows(study.ranking)
    return [_table(one, named) for one in study.items]


def held_rows(study: Study) -> list[dict[str, Any]]:
    """The rows of the table of training and held-out values."""
    if study.held_out is None:
        return []
    named = named_rows(study.ranking)
    return [
        {
            **named[side.cell],
            "training": _shown(side.training),
            "held_out": _shown(side.held_out),
        }
        for side in study.held_out.sides[:_HELD]
    ]


def task_rows(study: Study) -> list[dict[str, Any]]:
    """The rows of the table of cells over several tasks."""
    if study.tasks is None:
        return []
    named = named_rows(study.ranking)
    return [
        {
            **named[own.cell],
            "runs": own.runs,
            "iqm": labels.within(own.iqm, own.low, own.high)[0],
            "interval": " to ".join(labels.within(own.iqm, own.low, own.high)[1:])
            if own.low is not None
            else labels.NONE,
            "rest": [f"{value:.3f}" for value in (own.mean, own.median, own.gap)],
            "improves": labels.percent(own.improves) if position else labels.NONE,
        }
        for position, own in enumerate(study.tasks.cells[:_ROWS])
    ]


def named_rows(ranking: Ranking) -> dict[str, dict[str, Any]]:
    """Cell -> the `name` and `tone` of its row. Cells without a colour of their own share one."""
    colours = row_tones(ranking)
    return {
        cell.name: {"name": short_name(cell), "tone": colours[cell.name]} for cell in ranking.cells
    }


def _shown(found: Summary) -> tuple[str, str]:
    if found.low is None or found.high is None:
        return labels.together(found.mean)[0], labels.NONE
    mean, low, high = labels.within(found.mean, found.low, found.high)
    return mean, f"{low} to {high}"


def _table(found: Compared, named: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    parted = {one.cell: one for one in found.parted}
    shown = found.cells[:_ROWS]
    return {
        "title": found.task or "Items",
        "training": found.training,
        "about": _about(found),
        "rows": [_row(one, parted.get(one.cell), named[one.cell]) for one in shown],
        "left": len(found.cells) - len(shown),
        "names": [named[one.cell]["name"] for one in found.cells[:PAIRED]],
        "beside": bool(found.alone),
        "lists": [
            _listed("The questions on which cells differ most", found.apart, open_=True),
            _listed(f"{plural(found.unsolved_count, 'question')} that nobody solves",
                    found.unsolved),
        ],
    }  # fmt: skip


def _about(found: Compared) -> str:
    whole = plural(found.items, "question")
    parts = [
        f"{whole}, answered by every run"
        + (f", of {found.known} that some did" if found.known > found.items else "")
    ]
    if found.clusters:
        parts.append(f"in {plural(found.clusters, 'group')} that count together")
    parts.append(f"{found.solved} solved by all, {found.unsolved_count} by nobody")
    if found.errors:
        parts.append(f"{plural(found.errors, 'answer')} ended in an error and score 0")
    return "; ".join(parts) + "."


def _row(own: ItemCell, parted: Parted | None, named: dict[str, Any]) -> dict[str, Any]:
    mean, low, high = labels.within(own.mean, own.low, own.high)
    found = {
        **named,
        "runs": own.runs,
        "mean": mean,
        "interval": f"{low} to {high}",
        "over": own.over,
        "difference": "",
        "counts": "",
        "standing": "the best",
    }
    if parted is None:
        return found
    gap, *ends = labels.within(-parted.difference, -parted.high, -parted.low)
    standing = "worse" if parted.told_apart else "not told apart"
    return found | {
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
