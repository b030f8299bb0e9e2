"""Finds items that one cell solves and another does not, with the answers of both. Keeps only the
answers that may be shown, since a sweep may have millions of answers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sweeper.analysis.comparison.items import Compared
from sweeper.analysis.findings.finding import short_name
from sweeper.analysis.findings.itemwise import counting
from sweeper.analysis.findings.study import Study
from sweeper.analysis.reading.sources import Source
from sweeper.results.items import Answer, files_of, item_files, read_answers
from sweeper.results.runs import RecordedRun

TEXT = 4000
"""The largest number of characters of a text. Of a longer text, the beginning and the end are
shown."""

PAGE = 400_000
"""The largest total number of characters of texts on a page. The page must stay small; compression
reduces texts to a quarter."""


class Beside(NamedTuple):
    """An item that the first of two cells solves and the second fails: its text (`prompt`), the
    correct answer (`right`), the best answer of the first cell (`solved`), the worst answer of the
    second cell (`failed`), and the scores of these two answers."""

    item: str
    prompt: str
    right: str
    solved: str
    failed: str
    scores: tuple[float, float]


class Transcripts(NamedTuple):
    """The transcripts of a task. `cells` are the names of cells. `pairs` maps the positions of two
    cells to a pair: the number of items that only the first of them solves, and some of these
    items."""

    task: str
    cells: tuple[str, ...]
    pairs: Mapping[tuple[int, int], tuple[int, tuple[Beside, ...]]]


class Ends(NamedTuple):
    """The best and the worst answer of a cell to an item."""

    best: Answer
    worst: Answer


def read_transcripts(study: Study, sources: Sequence[Source]) -> list[Transcripts]:
    """Read the transcripts of each task of a study from its sources."""
    runs = dict(_runs(sources))
    used = 0
    transcripts: list[Transcripts] = []
    for compared in study.items:
        made = transcripts_of(study, compared, _answers(study, compared, runs), PAGE - used)
        used += sum(_size(beside) for _, shown in made.pairs.values() for beside in shown)
        transcripts.append(made)
    return transcripts


def _runs(sources: Sequence[Source]) -> Iterator[tuple[str, RecordedRun]]:
    """Yield (id, run) pairs. With several sources, an id starts with the name of its source."""
    for source in sources:
        for placed in source.runs:
            several = len(sources) > 1
            yield (f"{source.name}/{placed.run.id}" if several else placed.run.id), placed.run


def _answers(
    study: Study, compared: Compared, runs: Mapping[str, RecordedRun]
) -> dict[tuple[str, str], Ends]:
    """Return a dict from (cell, item) to the best and the worst answer, for the items that only one
    cell of a pair solves (`compared.alone`)."""
    wanted: dict[str, set[str]] = {}
    for pair in compared.alone:
        for cell in (pair.cell, pair.other):
            wanted.setdefault(cell, set()).update(pair.items)
    ends: dict[tuple[str, str], Ends] = {}
    for cell in study.ranking.cells:
        items = wanted.get(cell.name, set[str]())
        for run in counting(study.data, cell.runs) if items else ():
            for answer in _of_task(runs.get(run.id), compared.task):
                if answer.item in items:
                    key = cell.name, answer.item
                    ends[key] = _with(ends.get(key), answer)
    return ends


def _of_task(run: RecordedRun | None, task: str) -> Iterator[Answer]:
    """Yield the judged answers of a run to a task."""
    if run is None:  # a run of the baseline, which is another sweep
        return
    files = item_files(files_of(run).items())
    for _, answers in read_answers(run, files)[0]:
        judged = [entry for entry in answers if entry.task == task and entry.score == entry.score]
        if judged:
            yield from judged
            return


def _with(ends: Ends | None, answer: Answer) -> Ends:
    if ends is None:
        return Ends(answer, answer)
    best = answer if answer.score > ends.best.score else ends.best
    return Ends(best, answer if answer.score < ends.worst.score else ends.worst)


def transcripts_of(
    study: Study, compared: Compared, ends: Mapping[tuple[str, str], Ends], room: int
) -> Transcripts:
    """Choose the items of a task to show, with at most `room` characters in total. Each pair of
    cells gets its first item before any pair gets a second item."""
    names = {cell.name: short_name(cell) for cell in study.ranking.cells}
    cells = list(dict.fromkeys(name for pair in compared.alone for name in (pair.cell, pair.other)))
    cells.sort(key=[side.cell for side in compared.cells].index)
    shown: dict[tuple[int, int], list[Beside]] = {}
    longest = max((len(pair.items) for pair in compared.alone), default=0)
    for number in range(longest):
        for pair in (pair for pair in compared.alone if number < len(pair.items)):
            beside = _beside(pair.items[number], ends, pair.cell, pair.other)
            if beside is not None and _size(beside) <= room:
                room -= _size(beside)
                place = cells.index(pair.cell), cells.index(pair.other)
                shown.setdefault(place, []).append(beside)
    pairs = {
        place: (pair.count, tuple(shown.get(place, ())))
        for pair in compared.alone
        for place in [(cells.index(pair.cell), cells.index(pair.other))]
    }
    return Transcripts(compared.task, tuple(names[cell] for cell in cells), pairs)


def _beside(
    item: str, ends: Mapping[tuple[str, str], Ends], cell: str, rival: str
) -> Beside | None:
    """Return the item with the best answer of `cell` and the worst answer of `rival`. None if an
    answer was not recorded, or if both answers have no text."""
    first, second = ends.get((cell, item)), ends.get((rival, item))
    if first is None or second is None or not (first.best.text or second.worst.text):
        return None
    return Beside(
        item,
        _cut(first.best.prompt or second.worst.prompt),
        _cut(first.best.right),
        _cut(first.best.text),
        _cut(second.worst.text),
        (first.best.score, second.worst.score),
    )


def _cut(text: str) -> str:
    if len(text) <= TEXT:
        return text
    left = len(text) - TEXT
    return f"{text[: TEXT // 2]}\n[... {left:,} characters ...]\n{text[-TEXT // 2 :]}"


def _size(beside: Beside) -> int:
    return sum(len(text) for text in beside[1:5])


def embedded(transcripts: Sequence[Transcripts]) -> list[dict[str, Any]]:
    """Return the transcripts as JSON values for the script of the page."""
    return [
        {
            "cells": list(entry.cells),
            "pairs": [
                {"solves": a, "fails": b, "count": count, "items": [_plain(i) for i in shown]}
                for (a, b), (count, shown) in entry.pairs.items()
            ],
        }
        for entry in transcripts
    ]


def _plain(beside: Beside) -> dict[str, Any]:
    return {**beside._asdict(), "scores": [f"{score:.3g}" for score in beside.scores]}
