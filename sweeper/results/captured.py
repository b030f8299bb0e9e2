"""Reads tinker-cookbook's `capture` stores of runs as rollouts with tokens and logprobs: the
database `capture/capture.sqlite`, or the exported file `capture/sample.jsonl`."""

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import chain
from typing import TYPE_CHECKING
from urllib.parse import quote

from sweeper.common.json_values import decode, is_list, is_number, list_of, table_of
from sweeper.errors import StoreError
from sweeper.metrics.rollout_files import SummaryFile, flat
from sweeper.metrics.rows import parse
from sweeper.results.rollouts import Found
from sweeper.results.runs import RecordedRun

if TYPE_CHECKING:
    import sqlite3

TOKENS = ("prompt_tokens", "sampled_tokens", "logprobs")
"""The fields of a step that come from captures. Databases and exported files have the same
fields."""

_DATABASE, _LINES = "capture/capture.sqlite", "capture/sample.jsonl"
_PLACE = ("iteration", "split", "group_idx", "traj_idx", "purpose")
_COLUMNS = (*_PLACE, "seq_id", "policy_version", *TOKENS, "metadata")
_QUERY = f"SELECT {', '.join(_COLUMNS)} FROM wire_rows ORDER BY cursor"  # noqa: S608 - constants
_LENGTH = "stop/max_tokens"

_Sequence = Mapping[str, object]
"""One sampled sequence: the values of `_COLUMNS`, and the reason why the sampling stopped."""


def captured(run: RecordedRun) -> list[Found]:
    """Return the captured trajectories of a run, sorted by iteration and split. If several attempts
    have trajectories of the same iteration and split, return only those of the latest attempt."""
    latest: dict[tuple[int, str], list[Found]] = {}
    for attempt, folder in enumerate(run.folders(), start=1):
        by_iteration: dict[tuple[int, str], list[Found]] = {}
        for path, rows in _stores(run, folder):
            for record in _records(rows):
                number = record["iteration"]
                iteration = number if isinstance(number, int) else 0
                file = SummaryFile(path, iteration, str(record.get("split", "captured")), attempt)
                trajectory = Found(file, record, flat(record, file))
                by_iteration.setdefault((iteration, file.name), []).append(trajectory)
        latest |= by_iteration
    return [trajectory for key in sorted(latest) for trajectory in latest[key]]


def with_tokens(rollouts: Sequence[Found], captures: Iterable[Found]) -> list[Found]:
    """Add captured tokens to the steps of rollouts. Return all rollouts, then the captured
    trajectories that match no rollout. A captured trajectory matches a rollout with the same
    iteration, group, trajectory and number of steps. If the split was captured too, the splits must
    also be equal."""
    by_place: dict[tuple[object, ...], list[Found]] = {}
    for capture in captures:
        place = capture.iteration, *capture.place
        by_place.setdefault(place, []).append(capture)
    joined: list[Found] = []
    for rollout in rollouts:
        steps = [table_of(step) for step in list_of(rollout.record.get("steps"))]
        splits = {rollout.file.name, str(rollout.record.get("split", rollout.file.name))}
        matches = by_place.get((rollout.iteration, *rollout.place), [])
        match = next(
            (
                capture
                for capture in matches
                if len(list_of(capture.record["steps"])) == len(steps)
                and str(capture.record.get("split", rollout.file.name)) in splits
            ),
            None,
        )
        if match is not None:
            matches.remove(match)
            captured_steps = [table_of(step) for step in list_of(match.record["steps"])]
            steps = [
                {**step, **{key: tokens[key] for key in TOKENS if key in tokens}}
                for step, tokens in zip(steps, captured_steps, strict=True)
            ]
            joined.append(rollout._replace(record={**rollout.record, "steps": steps}))
        else:
            joined.append(rollout)
    return [*joined, *chain.from_iterable(by_place.values())]


def _stores(run: RecordedRun, folder: str) -> Iterator[tuple[str, list[_Sequence]]]:
    """Yield (path, sequences) for the database and the exported file of an attempt, if any."""
    database, lines = (f"{folder}/{name}".lstrip("/") for name in (_DATABASE, _LINES))
    if run.files.source(database) is not None:
        yield database, run.readable(lambda: _read_database(run, database), [])
    if run.files.source(lines) is not None:
        data = run.readable(lambda: run.read(lines), b"")
        yield lines, [row for record in parse(data).rows for row in _of_record(record)]


def _read_database(run: RecordedRun, path: str) -> list[_Sequence]:
    """Read the sequences in a database. If the capture daemon is not using the database, read a
    copy, since SQLite may create files next to an open database. Raises `StoreError` if the
    database is damaged."""
    import sqlite3

    local = run.store.local_path(path)
    try:
        if local is not None and os.path.exists(f"{local}-shm"):
            with suppress(sqlite3.OperationalError), closing(_open(local)) as database:
                return _rows(database)
        with tempfile.TemporaryDirectory() as scratch:
            copy = os.path.join(scratch, "capture.sqlite")
            for ending in ("", "-wal"):
                with open(f"{copy}{ending}", "wb") as file:
                    file.write(run.read(f"{path}{ending}"))
            with closing(_open(copy)) as database:
                return _rows(database)
    except (sqlite3.Error, ValueError) as error:
        raise StoreError(f"{run.root}/{path}: damaged, or not a capture store ({error})") from error


def _open(path: str) -> "sqlite3.Connection":
    import sqlite3

    database = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)
    database.execute("PRAGMA trusted_schema=OFF")
    return database


def _rows(database: "sqlite3.Connection") -> list[_Sequence]:
    rows: list[_Sequence] = []
    for values in database.execute(_QUERY):
        row: dict[str, object] = dict(zip(_COLUMNS, values, strict=True))
        for key in (*TOKENS, "metadata"):
            text = row[key]
            row[key] = decode(text.encode()) if isinstance(text, str) else None
        rows.append({**row, "stop_reason": table_of(row["metadata"]).get("stop_reason")})
    return rows


def _of_record(record: Mapping[str, object]) -> Iterator[_Sequence]:
    scope = table_of(record.get("scope"))
    for sample in map(table_of, list_of(record.get("samples"))):
        yield {
            **{key: scope.get(key) for key in _PLACE},
            "seq_id": record.get("seq_id"),
            "policy_version": record.get("model_path"),
            "prompt_tokens": record.get("prompt_tokens"),
            "sampled_tokens": sample.get("tokens"),
            "logprobs": sample.get("logprobs"),
            "stop_reason": sample.get("stop_reason"),
        }


def _records(rows: Iterable[_Sequence]) -> Iterator[dict[str, object]]:
    """Yield a rollout summary for each trajectory. The turns of a trajectory are the sequences with
    the same iteration, split, group and trajectory number. If the group number is missing, each
    sampling call is a group. If the trajectory number is missing, each sequence is a trajectory."""
    trajectories: dict[tuple[object, ...], list[_Sequence]] = {}
    groups: dict[object, int] = {}
    sizes: dict[tuple[object, ...], int] = {}
    for row in rows:
        iteration, split, group, number = (_plain(row[key]) for key in _PLACE[:4])
        if group is None:
            group = groups.setdefault(_plain(row["seq_id"]), len(groups))
        place = (iteration, split, group)
        if number is None:
            number = sizes[place] = sizes.get(place, -1) + 1
        trajectories.setdefault((*place, number), []).append(row)
    for (iteration, split, group, number), turns in trajectories.items():
        record: dict[str, object] = {"iteration": iteration, "group_idx": group, "traj_idx": number}
        if isinstance(split, str):
            record["split"] = split
        if isinstance(purpose := turns[0]["purpose"], str):
            record["tags"] = [purpose]
        yield {**record, "steps": [_step(turn) for turn in turns]}


def _plain(value: object) -> int | float | str | None:
    return value if isinstance(value, int | float | str) else None


def _step(turn: _Sequence) -> dict[str, object]:
    """Return a turn as a step of a rollout summary. `logs` repeats the turn's tokens as text."""
    lists = {key: list_of(turn.get(key)) for key in TOKENS if is_list(turn.get(key))}
    metrics: dict[str, object] = {}
    logprobs = [value for value in lists.get("logprobs", []) if is_number(value)]
    if logprobs:
        metrics["logprob"] = sum(logprobs) / len(logprobs)
    if turn.get("stop_reason") == "length":
        metrics[_LENGTH] = 1.0
    return {
        "ob_len": len(lists.get("prompt_tokens", [])),
        "ac_len": len(lists.get("sampled_tokens", [])),
        "metrics": metrics,
        "logs": {key: " ".join(map(str, lists[key])) for key in TOKENS[:2] if key in lists},
        **lists,
    }
