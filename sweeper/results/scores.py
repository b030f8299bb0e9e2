"""Scores of checkpoints on benchmarks: from tinker-cookbook's EvalStore, and from metrics such as
`eval/gsm8k/score`."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sweeper.common.json_values import decode, is_number, is_table
from sweeper.errors import NotFound
from sweeper.metrics.evaluation import BASE, Facts, facts_of, step_of_name
from sweeper.metrics.files import EVALUATION
from sweeper.metrics.rows import as_float
from sweeper.sweep.run_record import RUN_KEY

if TYPE_CHECKING:
    from sweeper.results.runs import RecordedRun

LAST = "last"
"""The name of a checkpoint without a recorded name or step."""
_RESULT, _TRAJECTORIES = "result.json", "trajectories.jsonl"
_KEY = re.compile(r"(?:.*/)?eval/(.+)/score")
_ITEMS = ("num_items", "num_examples")
_PARENT = "parent_path"
_OF_EVAL = "items"
"""The name in the checkpoint records of the recipe `eval`, which saves no weights. In these
records, the key `_PARENT` has the address of the evaluated weights."""


class Score(NamedTuple):
    """The score of a checkpoint on a suite. `step` is None if unknown. `path` is the checkpoint's
    address. `items` is the number of evaluated items, `errors` the number of items with an error.
    `time` is when the checkpoint was evaluated. Fields other than the first four may be unknown."""

    checkpoint: str
    step: float | None
    suite: str
    score: float
    items: int | None = None
    errors: int | None = None
    path: str | None = None
    time: str | None = None

    @property
    def place(self) -> tuple[int, float, str]:
        """The sort key of the checkpoint: first the base model, then checkpoints with a known step
        (by step), then checkpoints without a known step (by name)."""
        if self.step is not None:
            return 1, self.step, self.checkpoint
        return (0 if self.checkpoint == BASE else 2), 0.0, self.checkpoint


class Point(NamedTuple):
    """A score that a run recorded as a metric."""

    suite: str
    step: float | None
    score: float
    items: float | None = None


SCORE_COLUMNS = (*RUN_KEY, *Score._fields)
"""The columns of `Registry.scores`."""


def suite_of(key: str) -> str | None:
    """Return the suite of a metric that is a score; None for other metrics."""
    match = _KEY.fullmatch(key)
    return None if match is None else match[1]


def item_keys(key: str) -> list[str]:
    """Return the metrics that may tell how many items the score `key` was computed from."""
    return [f"{key.removesuffix('score')}{name}" for name in _ITEMS]


def scores_of(run: "RecordedRun", points: Sequence[Point], paths: Iterable[str]) -> list[Score]:
    """Return the scores of a run's checkpoints, from the recorded `points` and from the evaluations
    stored in `paths`. For each checkpoint and suite, a stored evaluation replaces a point, and a
    later evaluation replaces an earlier one."""
    if run.evaluation is not None:  # the metrics repeat the stored evaluation
        points = []
    listed = set(paths)
    evaluations = _evaluations(listed)
    if not points and not evaluations:
        return []
    records = run.checkpoint_records()
    stored = sorted(_stored(run, listed, evaluations, records), key=lambda score: score.time or "")
    if points:  # an evaluation without a time may repeat a recorded point
        stored = [score for score in stored if score.time]
    return merged([*_recorded(points, records), *stored])


def merged(scores: Iterable[Score]) -> list[Score]:
    """Return the last score of each checkpoint and suite, sorted by checkpoint."""
    last = {(score.place, score.path, score.suite): score for score in scores}
    return sorted(last.values(), key=lambda score: score.place)


def _recorded(points: Sequence[Point], records: Sequence[Mapping[str, object]]) -> list[Score]:
    saved = [record for record in records if record.get("state_path") or record.get("sampler_path")]
    evaluated = next((record for record in records if record.get("name") == _OF_EVAL), None)
    # The run is an evaluation. Its steps count items, and its last row covers all items.
    if evaluated is not None and not saved:
        last = {point.suite: point for point in points}
        address = _text(evaluated.get(_PARENT))
        name = BASE if address is None else address.rstrip("/").rpartition("/")[2]
        points = [point._replace(step=step_of_name(name)) for point in last.values()]
        return [_score(point, name, address) for point in points]
    names = {step: record for record in saved if (step := _step(record)) is not None}
    scores: list[Score] = []
    for point in points:
        record = None if point.step is None else names.get(point.step)
        if record is not None:
            scores.append(_score(point, str(record.get("name")), _address(record)))
        else:
            scores.append(_score(point, LAST if point.step is None else f"step {point.step:g}"))
    return scores


def _score(point: Point, name: str, address: str | None = None) -> Score:
    return Score(name, point.step, point.suite, point.score, _whole(point.items), None, address)


def _stored(
    run: "RecordedRun",
    listed: Collection[str],
    evaluations: Mapping[str, Sequence[str]],
    records: Sequence[Mapping[str, object]],
) -> list[Score]:
    """Return the scores in the folders of evaluations. If an evaluation has no `metadata.json`, its
    checkpoint is named after the folder, or `LAST` if the folder is an attempt's folder."""
    by_name: dict[str | None, Mapping[str, object]] = {}
    for record in records:
        names = (_text(record.get(key)) for key in ("name", "sampler_path", "state_path"))
        by_name |= {name: record for name in names if name}
    scores: list[Score] = []
    for folder, suites in evaluations.items():
        facts = facts_of(read_document(run, f"{folder}/{EVALUATION}"))
        if facts is None:
            name = LAST if folder in run.folders() else folder.rpartition("/")[2]
            facts = Facts("", name, None, tuple(suites), "", {}, {})
        record = by_name.get(facts.path, by_name.get(facts.checkpoint, {}))
        name = _text(record.get("name")) or facts.checkpoint
        is_other = facts.path is not None and facts.path not in by_name
        address = facts.path if is_other else _address(record)
        step = _step(record)
        step = step_of_name(name) if step is None else step
        for suite in facts.benchmarks:
            path = f"{folder}/{suite}/{_RESULT}"
            result = read_document(run, path) if path in listed else {}
            score = as_float(result.get("score", facts.scores.get(suite)))
            if score is not None and math.isfinite(score):
                items, errors = (_whole(result.get(key)) for key in ("num_examples", "num_errors"))
                scores.append(Score(name, step, suite, score, items, errors, address, facts.time))
    return scores


def _evaluations(paths: Collection[str]) -> dict[str, list[str]]:
    """Return a dict from the folder of each evaluation to its suites that have results."""
    folders: dict[str, list[str]] = {}
    for path in sorted(paths):
        folder, _, name = path.rpartition("/")
        above, _, suite = folder.rpartition("/")
        if name == _RESULT and f"{folder}/{_TRAJECTORIES}" in paths:
            folders.setdefault(above, []).append(suite)
        elif name == EVALUATION:
            folders.setdefault(folder, [])
    return folders


def _address(record: Mapping[str, object]) -> str | None:
    return _text(record.get("sampler_path")) or _text(record.get("state_path"))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def read_document(run: "RecordedRun", path: str) -> dict[str, object]:
    """Read a JSON object. Return {} if the file is missing or has no valid JSON object."""
    try:
        document = decode(run.store.read(path))
    except (NotFound, ValueError):
        return {}
    return document if is_table(document) else {}


def _step(record: Mapping[str, object]) -> float | None:
    step = record.get("batch", record.get("step"))
    return float(step) if is_number(step) else None


def _whole(value: object) -> int | None:
    number = as_float(value)
    return None if number is None or not math.isfinite(number) else int(number)


class Series(NamedTuple):
    """The checkpoints of one training run, or of one model in an EvalStore, with their scores."""

    run: "RecordedRun"
    label: str
    scores: list[Score]


def series_of(scores: Iterable[tuple["RecordedRun", list[Score]]]) -> list[Series]:
    """Return one series for each training run, and one for each model in an EvalStore. In an
    EvalStore, each evaluation is a run, and all evaluations of a model form one series."""
    groups: dict[tuple[str, ...], Series] = {}
    for run, of_run in scores:
        facts = run.evaluation
        key = (run.root, run.sweep, run.id if facts is None else f"model {facts.model}")
        label = run.name if facts is None else facts.model
        group = groups.setdefault(key, Series(run, label, []))
        group.scores.extend(of_run)
    return [
        series._replace(scores=_distinguished(series.scores))
        for series in groups.values()
        if series.scores
    ]


def _distinguished(scores: Sequence[Score]) -> list[Score]:
    """Return the last score of each checkpoint and suite. If checkpoints with different addresses
    have the same name, such as `final`, append the address to each of these names."""
    last = merged(sorted(scores, key=lambda score: score.time or ""))
    paths: dict[str, set[str | None]] = {}
    for score in last:
        paths.setdefault(score.checkpoint, set()).add(score.path)
    return [
        score._replace(checkpoint=f"{score.checkpoint} {score.path}")
        if score.path and len(paths[score.checkpoint]) > 1
        else score
        for score in last
    ]
