"""Maintains a file of notes about a sweep, for people and agents. Each `sweeper analyze` with
such a file rewrites the facts between two marker lines in it, and leaves everything else in it
unchanged."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sweeper.analysis.page.markdown import escape, fenced
from sweeper.analysis.page.report import Report
from sweeper.analysis.reading.criterion import Judged, StudyPlan, judge, read_plan
from sweeper.analysis.reading.sources import write_file
from sweeper.errors import NotFound, StoreError, UsageError
from sweeper.results.registry import Registry
from sweeper.sweep.labels import plural
from sweeper.sweep.plan import Plan

FOLDER = "notes"
PLAN = "plan.md"
_BEGIN = "<!-- facts, written anew by `sweeper analyze`: write below them -->"
_END = "<!-- end of the facts -->"
_REST = """
## What it means

## What was expected, and what surprised

## What next
"""
_ANOMALIES = 12
_MOST = 1_000_000
"""The largest number of characters that are read of a file of notes, because some files have no
end."""


class WrittenNotes(NamedTuple):
    """The path of the written file (None if nothing was written), and messages for the user."""

    path: str | None
    messages: tuple[str, ...]


def keep(registry: Registry, report: Report, folder: str, cost: str | None) -> WrittenNotes:
    """Write the facts about a sweep into its file of notes in `folder`. If a plan in `folder`
    states a criterion, judge the sweep by this criterion. `cost` is a sentence about the cost, None
    if unknown. Raises `UsageError` if `folder` is not a folder or if the plan or the notes cannot
    be read, and `StoreError` if the notes cannot be written."""
    messages: list[str] = []
    judged: Judged | None = None
    plan = _plan_in(folder)
    if plan is not None:
        place = os.path.join(folder, PLAN)
        messages += [f"{place}: {lack}" for lack in plan.lacks]
        if plan.criterion is not None:
            judged = judge(plan.criterion, report.document)
            messages.append(f"criterion {plan.criterion.text}: {_judgement(judged)}")
    document = report.document
    name = f"{document['sweep'].replace('/', '.').replace(' + ', '+')}.md"
    lines = _facts(document, _recorded(registry, document["sweep"]), cost)
    if plan is not None and plan.criterion is not None and judged is not None:
        lines = [*lines, f"- criterion {escape(plan.criterion.text)}: {escape(_judgement(judged))}"]
    path = os.path.join(folder, name)
    text = merged(_read(path), document["sweep"], "\n".join(lines))
    if text is None:
        messages.append(f"{path} has no place for facts (a line {_BEGIN}), and was not changed")
        return WrittenNotes(None, tuple(messages))
    return WrittenNotes(write_file(folder, name, text.encode("utf-8", "replace")), tuple(messages))


def merged(before: str | None, sweep: str, facts: str) -> str | None:
    """Return the text of a file of notes with new facts. `before` is its text so far, None for a
    new file. Return None if `before` has no marker lines for facts."""
    block = f"{_BEGIN}\n\n{facts}\n\n{_END}"
    if before is None:
        return f"# {escape(sweep)}\n\n{block}\n{_REST}"
    begin, end = before.find(_BEGIN), before.find(_END)
    if begin < 0 or end < begin:
        return None
    return before[:begin] + block + before[end + len(_END) :]


def _judgement(judged: Judged) -> str:
    word = {True: "met", False: "not met", None: "not shown"}[judged.met]
    return f"{word}: {judged.text}"


def _plan_in(folder: str) -> StudyPlan | None:
    text = _read(os.path.join(folder, PLAN))
    return None if text is None else read_plan(text)


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read(_MOST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    if len(text) > _MOST:
        raise UsageError(f"{path}: has more than {_MOST:,} characters")
    return text


def _recorded(registry: Registry, name: str) -> Plan | None:
    """Return the recorded plan of a sweep, or of the sweep that a stage belongs to. None if there
    is no such sweep (`name` may be a folder)."""
    try:
        return registry.sweep(registry.split(name)[0]).plan
    except (NotFound, StoreError, UsageError):  # UsageError: in several roots
        return None


def _facts(document: Mapping[str, Any], plan: Plan | None, cost: str | None) -> list[str]:
    return [
        fenced(document["verdict"]["text"]),
        "",
        *(f"- {line}" for line in _lines(document, plan, cost)),
    ]


def _lines(document: Mapping[str, Any], plan: Plan | None, cost: str | None) -> Iterator[str]:
    states = document["completeness"]["states"]
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    yield f"runs: {document['completeness']['planned']} planned: {counts or 'none'}"
    if plan is not None:
        yield from _origin(document, plan)
    if cost:
        yield f"cost: {escape(cost)}"
    checkpoint = document["verdict"]["checkpoint"]
    if checkpoint is not None:
        yield f"checkpoint: {escape(checkpoint['run'])}, {escape(checkpoint['path'])}"
    yield from _anomalies(document)
    for note in document["notes"]:
        about = f" of {escape(note['run'])}" if note["run"] else ""
        text = escape(" ".join(note["text"].split()))
        yield f"note{about} ({escape(note['by'])}, {note['time']}): {text}"


def _origin(document: Mapping[str, Any], plan: Plan) -> Iterator[str]:
    commits = Counter(run["commit"] for run in document["runs"] if run["commit"])
    for commit, count in commits.items():
        runs = f" ({plural(count, 'run')})" if len(commits) > 1 else ""
        yield f"commit: {escape(commit)}{runs}"
    if plan.created:
        yield f"launched: {escape(plan.created)}"
    if plan.grid_path:
        yield f"grid: {escape(plan.grid_path)} {escape(' '.join(plan.overrides))}".rstrip()
    axes = "; ".join(f"{key}: {', '.join(map(str, values))}" for key, values in plan.axes.items())
    if axes:
        yield f"axes: {escape(axes)}"


def _anomalies(document: Mapping[str, Any]) -> Iterator[str]:
    rules = Counter(rule for run in document["runs"] for rule in set(run["alarms"]))
    for rule, count in sorted(rules.items()):
        yield f"alarm {escape(rule)}: {plural(count, 'run')}"
    for failure in document["failures"][:_ANOMALIES]:
        line = re.sub(r"\s+", " ", failure["last_line"] or "")
        text = f"{escape(failure['why'])} {escape(line)}".rstrip()
        yield f"failed: {plural(len(failure['runs']), 'run')}: {text}"
    diverged = document["stability"]["diverged"]
    if diverged:
        shown = ", ".join(diverged[:_ANOMALIES])
        yield f"diverged: {plural(len(diverged), 'run')}: {escape(shown)}"
