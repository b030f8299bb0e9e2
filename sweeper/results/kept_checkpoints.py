"""Lists the checkpoints that the service stores for runs. A stored checkpoint costs money by size
and time. Finds the checkpoints that no run or configuration needs."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple
from urllib.parse import quote

from sweeper.common import codec
from sweeper.common.codec import Default, Key
from sweeper.errors import NotFound
from sweeper.metrics.rows import Row, as_float, as_number
from sweeper.results.runs import RecordedRun
from sweeper.results.service_requests import Service
from sweeper.results.sweeps import SweepRun

KEEP = ("best", "final")
_PAGE = 500
_SCHEME = "tinker://"
_STEPS = ("batch", "step")
"""Keys of a checkpoint's record for the step after which the checkpoint was saved."""


class Kept(NamedTuple):
    """A checkpoint at the service. `path` is `tinker://...`, `size` is in bytes, `time` is when the
    checkpoint was saved, and `expires` when it will be deleted (None for never)."""

    path: Annotated[str, Key("tinker_path")]
    size: Annotated[int, Key("size_bytes"), Default(0)]
    time: str | None
    expires: Annotated[str | None, Key("expires_at")]

    def record(self) -> dict[str, object]:
        """Return the values as plain data."""
        return self._asdict()


class _Page(NamedTuple):
    checkpoints: tuple[Kept, ...]


def listed(service: Service) -> dict[str, Kept]:
    """Return all checkpoints that the service stores for this API key, by path. Raises
    `EnvironmentFailure`."""
    checkpoints: dict[str, Kept] = {}
    offset = 0
    while True:
        answer = service.ask("checkpoints", "checkpoints", limit=str(_PAGE), offset=str(offset))
        page = codec.read(_Page, answer, f"{service.url}/checkpoints").checkpoints
        checkpoints |= {checkpoint.path: checkpoint for checkpoint in page}
        offset += _PAGE
        if len(page) < _PAGE:
            return checkpoints


def of_runs(
    runs: Iterable[RecordedRun], checkpoints: Mapping[str, Kept]
) -> list[tuple[RecordedRun, str, Kept]]:
    """Return the checkpoints that a run has recorded and the service still stores, as (run, name,
    checkpoint). Each checkpoint is returned once."""
    of_run: dict[str, tuple[RecordedRun, str, Kept]] = {}
    for run in runs:
        for record in run.checkpoint_records():
            for path in _paths(record):
                if path in checkpoints:
                    of_run[path] = (run, str(record.get("name", "")), checkpoints[path])
    return list(of_run.values())


def _paths(value: object) -> Iterator[str]:
    return (text for text in _texts(value) if text.startswith(_SCHEME))


def referred(runs: Sequence[RecordedRun]) -> tuple[set[str], set[str]]:
    """Return the addresses of checkpoints, and the ids of runs, that other runs may need. The
    addresses are those in the configurations of `runs`. A run may be needed if it is a parent of
    another run, if a configuration names its folder, or if a later stage may start from it."""
    addresses: set[str] = set()
    texts: list[str] = []
    parents: set[str] = set()
    for run in runs:
        addresses.update(_paths(run.config))
        texts += [text for text in _texts(run.config) if "/" in text or "." in text]
        parents.update(run.parents)
        if isinstance(run, SweepRun) and run.awaited:
            parents.add(run.id)
    named = {run.id for run in runs if any(f"{run.id}." in text for text in texts)}
    return addresses, named | parents


def _texts(value: object) -> Iterator[str]:
    """Yield all strings in nested lists and mappings, except the keys of mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():  # pyright: ignore[reportUnknownVariableType]
            yield from _texts(inner)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, list | tuple):
        for inner in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _texts(inner)  # pyright: ignore[reportUnknownArgumentType]


def spared(
    chosen: Sequence[tuple[RecordedRun, str, Kept]],
    everything: Sequence[RecordedRun],
    keep: Collection[str],
) -> dict[str, str]:
    """Return {path: reason} for the checkpoints in `chosen` that must not be deleted. These are
    checkpoints of runs that are outside sweeps or not finished, and checkpoints that another run
    needs (see `referred`). `keep` may add the `best` and the `final` checkpoint of each run."""
    addresses, runs = referred(everything)
    best_of_run: dict[int, set[str]] = {}
    reasons: dict[str, str] = {}
    for run, _, checkpoint in chosen:
        if not isinstance(run, SweepRun) or not run.is_finished:
            reasons[checkpoint.path] = "the run may not have ended"
        elif run.id in runs or checkpoint.path in addresses:
            reasons[checkpoint.path] = "another run starts from it"
        else:
            if id(run) not in best_of_run:
                best_of_run[id(run)] = set(_best_and_final(run, keep))
            if checkpoint.path in best_of_run[id(run)]:
                reasons[checkpoint.path] = "best or final of its run"
    return reasons


def _best_and_final(run: RecordedRun, keep: Collection[str]) -> Iterator[str]:
    records = [record for record in run.checkpoint_records() if any(_paths(record))]
    if not records:
        return
    if "final" in keep:
        yield from _paths(records[-1])
    if "best" in keep:
        yield from _paths(best_record(run, records))


def best_record(run: RecordedRun, records: Sequence[Row]) -> Row:
    """Return the record of the best checkpoint. The value of a checkpoint is the last value of the
    run's metric up to the checkpoint's step. If no checkpoint has a finite value, return the last
    record."""
    metric: Mapping[str, str] = run.metric or {}
    values = [
        (step, value)
        for row in run.readable_history.rows
        if (value := as_number(row.get(metric.get("name", "")))) is not None
        and (step := as_float(row.get("step"))) is not None
    ]
    sign = -1.0 if metric.get("goal") == "maximize" else 1.0
    judged: list[tuple[float, int]] = []
    for number, record in enumerate(records):
        at = next((s for key in _STEPS if (s := as_float(record.get(key))) is not None), None)
        before = [value for step, value in values if at is not None and step <= at]
        if before and math.isfinite(before[-1]):
            judged.append((sign * before[-1], -number))
    return records[-min(judged)[1]] if judged else records[-1]


def delete(service: Service, checkpoint: Kept) -> bool:
    """Delete a checkpoint. Return whether it existed. Raises `EnvironmentFailure`."""
    try:
        service.ask(_address(checkpoint.path), "checkpoint", method="DELETE")
    except NotFound:
        return False
    return True


def expire(service: Service, checkpoint: Kept, seconds: int | None) -> bool:
    """Tell the service to delete a checkpoint after `seconds` seconds; None means never. Return
    whether the checkpoint existed. Raises `EnvironmentFailure`."""
    body: dict[str, object] = {"ttl_seconds": seconds}
    try:
        service.ask(f"{_address(checkpoint.path)}/ttl", "checkpoint", method="PUT", body=body)
    except NotFound:
        return False
    return True


def _address(path: str) -> str:
    run, _, checkpoint = path.removeprefix(_SCHEME).partition("/")
    return f"training_runs/{quote(run, safe=':')}/checkpoints/{quote(checkpoint)}"
