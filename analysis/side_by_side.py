"""Compares checkpoints ("sides") on the same prompts, item by item: their answers, the items
that only one of them solves, and the side that leads."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sweeper.analysis.comparison.items import SOLVED, Parts, difference
from sweeper.common.sanitize import sanitize_lines
from sweeper.results.items import Answer


class Prompt(NamedTuple):
    """An item and its answers. `texts` has the answers of each side (see `Sides`), and `scores` the
    mean score of each side (None if an answer was not graded). `right` is the right answer."""

    item: str
    prompt: str
    right: str
    texts: tuple[tuple[str, ...], ...]
    scores: tuple[float | None, ...]
    cluster: str


@dataclass(frozen=True)
class Ahead:
    """A comparison of a side (a set of answers) with the first side. `items` is the number of
    items. `difference` is the mean score of this side minus that of the first side. The 95 %
    interval of the difference is from `low` to `high` (None for fewer than two items). `gained` has
    the items that only this side solves, and `lost` the items that only the first side solves."""

    name: str
    items: int
    difference: float
    low: float | None
    high: float | None
    gained: tuple[Prompt, ...]
    lost: tuple[Prompt, ...]


@dataclass(frozen=True)
class Sides:
    """A comparison of several sides. A side is a set of answers, such as those of a checkpoint.
    `means` are the mean scores of the sides, over the items for which all sides have a score.
    `against` compares each of the other sides with the first side."""

    names: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    means: tuple[float | None, ...]
    against: tuple[Ahead, ...]

    @property
    def document(self) -> dict[str, object]:
        """The comparison as a JSON object."""
        return {
            "schema": 1,
            "sides": [
                {"name": name, "score": mean}
                for name, mean in zip(self.names, self.means, strict=True)
            ],
            "differences": [
                {
                    "name": ahead.name,
                    "items": ahead.items,
                    "difference": ahead.difference,
                    "low": ahead.low,
                    "high": ahead.high,
                    "gained": [prompt.item for prompt in ahead.gained],
                    "lost": [prompt.item for prompt in ahead.lost],
                }
                for ahead in self.against
            ],
            "items": [prompt._asdict() for prompt in self.prompts],
        }


def compare_sides(answers: Mapping[str, Sequence[Answer]]) -> Sides:
    """Compare the first side with each other side. An item counts if all sides have answered it."""
    names = tuple(answers)
    by_item = [_by_item(answers[name]) for name in names]
    common = [item for item in by_item[0] if all(item in answered for answered in by_item)]
    prompts = tuple(_prompt(item, [answered[item] for answered in by_item]) for item in common)
    judged = [prompt for prompt in prompts if None not in prompt.scores]
    means: list[float | None] = [
        float(np.mean([prompt.scores[side] or 0.0 for prompt in judged])) if judged else None
        for side in range(len(names))
    ]
    against = [_ahead(names[side], judged, side) for side in range(1, len(names)) if judged]
    return Sides(names, prompts, tuple(means), tuple(against))


def _by_item(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    by_item: dict[str, list[Answer]] = {}
    for answer in answers:
        by_item.setdefault(answer.item, []).append(answer)
    return by_item


def _prompt(item: str, sides: Sequence[Sequence[Answer]]) -> Prompt:
    first = sides[0][0]
    texts = tuple(tuple(answer.text for answer in answers) for answers in sides)
    scores = tuple(_mean([answer.score for answer in answers]) for answers in sides)
    return Prompt(item, first.prompt, first.right, texts, scores, first.cluster)


def _mean(scores: Sequence[float]) -> float | None:
    mean = float(np.mean(scores))
    return mean if np.isfinite(mean) else None


def _ahead(name: str, judged: Sequence[Prompt], side: int) -> Ahead:
    scores = np.array([[prompt.scores[side] or 0.0 for prompt in judged]])
    first = np.array([[prompt.scores[0] or 0.0 for prompt in judged]])
    gained = tuple(prompt for prompt in judged if _solves(prompt, side) and not _solves(prompt, 0))
    lost = tuple(prompt for prompt in judged if _solves(prompt, 0) and not _solves(prompt, side))
    value = float(scores.mean() - first.mean())
    if len(judged) < 2:
        return Ahead(name, len(judged), value, None, None, gained, lost)
    clusters = [prompt.cluster for prompt in judged]
    numbers = {text: n for n, text in enumerate(dict.fromkeys(clusters))}
    grouped = [numbers[text] for text in clusters] if all(clusters) else None
    parts: Parts = difference(scores, first, clusters=grouped, shares=True)
    reach = parts.reach()
    return Ahead(name, len(judged), value, value - reach, value + reach, gained, lost)


def _solves(prompt: Prompt, side: int) -> bool:
    return (prompt.scores[side] or 0.0) >= SOLVED


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #222; background: #fff }
table { border-collapse: collapse; width: 100%; table-layout: fixed }
th, td { border: 1px solid #ddd; padding: .4rem .6rem; text-align: left; vertical-align: top }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.4 monospace }
.right { background: #eaf6ea } .wrong { background: #fbecec }
"""


def page(sides: Sides) -> str:
    """Return the comparison as a self-contained HTML page. Items that only some sides solve come
    first."""
    apart = {prompt.item for ahead in sides.against for prompt in (*ahead.gained, *ahead.lost)}
    ordered = sorted(sides.prompts, key=lambda prompt: prompt.item not in apart)
    heads = "".join(f"<th>{_escaped(name)}</th>" for name in ("prompt", *sides.names))
    rows = "".join(_row(prompt) for prompt in ordered)
    summary = "".join(f"<p>{_escaped(line)}</p>" for line in lines(sides))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>Checkpoints compared</title><style>{_STYLE}</style></head><body>"
        f"<h1>Checkpoints compared</h1>{summary}"
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></body></html>\n"
    )


def _escaped(text: str) -> str:
    return html.escape(sanitize_lines(text))


def _row(prompt: Prompt) -> str:
    cells = [f"<td><pre>{_escaped(prompt.prompt)}</pre>{_right(prompt.right)}</td>"]
    for texts, score in zip(prompt.texts, prompt.scores, strict=True):
        kind = "" if score is None else ' class="right"' if score >= SOLVED else ' class="wrong"'
        cell = "<hr>".join(f"<pre>{_escaped(text)}</pre>" for text in texts)
        cells.append(f"<td{kind}>{cell}{'' if score is None else f'<small>{score:g}</small>'}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _right(text: str) -> str:
    return f"<small>right: {_escaped(text)}</small>" if text else ""


def lines(sides: Sides) -> list[str]:
    """Return a summary as lines: the mean score of each side, and the differences from the first
    side."""
    count = len(sides.prompts)
    texts = [f"{count} item{'s' * (count != 1)}, answered by {len(sides.names)} sides"]
    for name, mean in zip(sides.names, sides.means, strict=True):
        texts.append(f"{name}: " + ("not judged" if mean is None else f"mean score {mean:.3f}"))
    for ahead in sides.against:
        reach = "" if ahead.low is None else f" (95 % {ahead.low:+.3f} to {ahead.high:+.3f})"
        texts.append(
            f"{ahead.name} minus {sides.names[0]}: {ahead.difference:+.3f}{reach}; solved only by "
            f"{ahead.name}: {len(ahead.gained)}, only by {sides.names[0]}: {len(ahead.lost)}"
        )
    return texts
