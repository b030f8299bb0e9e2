"""The plan of a study (`notes/plan.md`): reads it, and judges whether its criterion is met. The
criterion is a line such as `criterion: test/nll <= 0.3` or `criterion: beats baseline`."""

import operator
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sweeper.analysis import labels
from sweeper.common.sanitize import sanitize
from sweeper.sweep.labels import plural

SECTIONS = ("Question", "Hypothesis", "Baseline", "Success criterion")
TEMPLATE = """\
# What this study is to show

Written before anything runs. `sweeper analyze` looks here: it says which part is empty, and whether
the criterion was met.

## Question

(What do you want to know?)

## Hypothesis

(What do you expect, and why?)

## Baseline

(What is to be beaten, and by which grid it was trained; `baseline:` in a grid names it.)

## Success criterion

(One line, of these: `criterion: test/nll <= 0.3`, with <, <=, > or >=, of the metric that the
sweep is judged by; or `criterion: beats baseline`.)
"""
_HOLDS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_LINE = re.compile(r"^\s*(?:[-*]\s+)?`?criterion:\s*(.+?)`?\s*$", re.IGNORECASE | re.MULTILINE)
_BOUND = re.compile(r"(\S+)\s*(<=|>=|<|>)\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)")
_HEADING = re.compile(r"^##\s+(.+?)\s*$", re.MULTILINE)
_ASIDE = re.compile(r"\(.*?\)|<!--.*?-->", re.DOTALL)


class Criterion(NamedTuple):
    """A criterion: `metric` must have the relation `sign` (such as <=) to `bound`. If `metric` is
    None, the best cell must beat the baseline. `text` is the criterion as the user wrote it."""

    text: str
    metric: str | None = None
    sign: str = ""
    bound: float = 0.0


class StudyPlan(NamedTuple):
    """The content of a study's plan: the criterion (None if it is missing or invalid), and messages
    about the parts that the plan lacks."""

    criterion: Criterion | None
    lacks: tuple[str, ...]


class Judged(NamedTuple):
    """The judgement: whether the criterion was `met` (None if unknown), and a `text` with the
    figures."""

    met: bool | None
    text: str


def read_plan(text: str) -> StudyPlan:
    """Read the text of `notes/plan.md`. Text in parentheses and HTML comments is ignored."""
    parts = _HEADING.split(text)
    sections = {name.lower(): body for name, body in zip(parts[1::2], parts[2::2], strict=True)}
    lacks = [
        f"section {name} is empty"
        for name in SECTIONS[:-1]
        if not _ASIDE.sub("", sections.get(name.lower(), "")).strip()
    ]
    match = _LINE.search(_ASIDE.sub("", sections.get(SECTIONS[-1].lower(), "")))
    if match is None:
        return StudyPlan(None, (*lacks, "the line `criterion: ...` is missing"))
    criterion = _criterion(match[1].strip())
    if criterion is None:
        shown = sanitize(match[1])[:80]
        why = f"criterion: {shown!r}: write `METRIC <= NUMBER` or `beats baseline`"
        return StudyPlan(None, (*lacks, why))
    return StudyPlan(criterion, tuple(lacks))


def _criterion(text: str) -> Criterion | None:
    if text.lower() == "beats baseline":
        return Criterion(text)
    match = _BOUND.fullmatch(text)
    if match is None:
        return None
    try:
        return Criterion(text, match[1], match[2], float(match[3]))
    except ValueError:
        return None


def judge(criterion: Criterion, document: Mapping[str, Any]) -> Judged:
    """Judge the content of `report.json` by a criterion. If the criterion names a metric, the mean
    and the whole interval of the best cell must meet the bound. Otherwise the best cell must
    be significantly better than the baseline."""
    rows = {row["cell"]: row for row in document["cells"]}
    best = rows.get(document["verdict"]["best"])
    if best is None:
        return Judged(None, "no cell is best, so the criterion cannot be judged")
    if criterion.metric is None:
        return _against(document, rows, best)
    metric: str | None = document["metric"] and document["metric"]["name"]
    if metric != criterion.metric:
        again = f"`sweeper analyze --metric {shlex.quote(criterion.metric)}` judges by it"
        return Judged(None, f"the sweep is judged by {metric}, not by {criterion.metric}: {again}")
    return _beyond(criterion, best)


def _beyond(criterion: Criterion, best: Mapping[str, Any]) -> Judged:
    holds = _HOLDS[criterion.sign]
    mean, low, high = best["mean"], best["low"], best["high"]
    text = f"{best['cell']} has {labels.number(mean)}"
    if not holds(mean, criterion.bound):
        return Judged(False, text)
    if low is None or high is None:
        seeds = plural(best["n"], "seed")
        return Judged(None, f"{text}, by {seeds}: there is no interval")
    text += f" (95 % interval {labels.number(low)} to {labels.number(high)}, {best['n']} seeds)"
    if holds(low, criterion.bound) and holds(high, criterion.bound):
        return Judged(True, text)
    return Judged(None, f"{text}: the interval reaches beyond {labels.number(criterion.bound)}")


def _against(
    document: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]], best: Mapping[str, Any]
) -> Judged:
    name = document["verdict"]["baseline"]
    baseline = document["verdict"]["against"] or "the grid names no baseline (`baseline:`)"
    if name is None or name not in rows:
        return Judged(None, baseline)
    if name == best["cell"]:
        return Judged(False, baseline)
    if rows[name]["told_apart"]:
        return Judged(True, baseline)
    return Judged(None, baseline if "noise" in baseline else f"{baseline}; noise can explain it")
