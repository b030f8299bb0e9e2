"""`sweeper show`: prints everything about one run."""

import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NotRequired, TypedDict

from sweeper.commands import arguments as shared
from sweeper.commands.note import tell_marks
from sweeper.commands.output import print_json_answer
from sweeper.commands.selection import open_registry
from sweeper.metrics.objective import last_values
from sweeper.results.marks import marks_by_run
from sweeper.results.problems import tell_problems
from sweeper.results.runs import RecordedRun
from sweeper.results.step_times import StepTimes, of_rows, timelines
from sweeper.results.sweeps import SweepRun
from sweeper.store.documents import dotted, place_of
from sweeper.sweep.labels import plural
from sweeper.sweep.marks import Marks
from sweeper.sweep.run_record import RunRecord, Times
from sweeper.terminal import duration, measurement, number, print_table, say, setting

_FILES = 30
_FACT = 160
_OF_LAUNCH = ("time", "commit", "dirty", "code", "program", "python", "service")


class _Run(RunRecord):
    path: str


class _Attempt(Times):
    attempt: int
    events: list[str]
    reason: str | None
    code: int | None
    signal: str | None
    host: str | None
    max_rss_bytes: int | None
    launch: dict[str, object]
    backend: NotRequired[str]
    gpus: NotRequired[str | None]
    sessions: NotRequired[list[str]]


class _File(TypedDict):
    path: str
    size: int


class _Document(TypedDict):
    run: _Run
    command: list[str] | None
    provenance: dict[str, object]
    wandb: str | None
    marks: dict[str, object]
    sweep_marks: dict[str, object]
    lineage: list[RunRecord]
    attempts: list[_Attempt]
    checkpoints: list[dict[str, object]]
    last_metrics: dict[str, dict[str, object]]
    step_times: dict[str, object] | None
    timelines: dict[str, str]
    files: list[_File]
    skipped: dict[str, int]


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper show`."""
    shared.group(verb, "which run").add_argument(
        "run", metavar="RUN", help="a run: sweep/run, the beginning of its name, or an id"
    )
    shared.roots(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Print a run's configuration, attempts, results and files."""
    registry = open_registry(arguments, snapshot=True)
    run = registry.run(arguments.run)
    ((of_run, of_sweep),) = marks_by_run([run])
    times = of_rows(run.readable_history.rows)
    document = _document(run, of_run, of_sweep, times)
    if arguments.json:
        return print_json_answer({"schema": 1, **document}, registry.problems)
    record = document["run"]
    reason = f" ({run.explained})" if run.explained else ""
    say(f"{run.sweep}/{run.name}  {run.id}  {record['state']}{reason}")
    say(run.path)
    if document["command"]:
        say(shlex.join(document["command"]))
    if document["wandb"]:
        say(document["wandb"])
    if isinstance(run, SweepRun) and run.race:
        say(run.race)
    if record["metric"]:
        say(f"{record['metric']}: {number(record['value'])}")
    rows = [(a["name"], a["state"], a["metric"], a["value"], duration(a["wall_s"]))
            for a in document["lineage"]]  # fmt: skip
    _section("continues from", ("run", "state", "metric", "value", "time"), rows)
    settings = [(key, setting(value)) for key, value in dotted(run.config)]
    _section("configuration", ("key", "value"), settings)
    attempts = document["attempts"]
    more = [key for key in ("backend", "gpus") if any(key in a for a in attempts)]
    rows = [
        (
            *(a["attempt"], ", ".join(a["events"]), duration(a["wall_s"]), a["reason"], a["host"]),
            *(a["launch"].get("short"), *(a.get(key) for key in more)),
        )
        for a in attempts
    ]
    _section("attempts", ("attempt", "events", "time", "reason", "host", "code", *more), rows)
    sessions = [(a["attempt"], id_) for a in attempts for id_ in a.get("sessions", ())]
    _section("sessions at the service", ("attempt", "session"), sessions)
    metrics = document["last_metrics"]
    _section("last metrics", ("key", "step", "value"),
             [(key, p["step"], p["value"] if not key.endswith("_at")
               else measurement(key, p["value"])) for key, p in metrics.items()])  # fmt: skip
    if times is not None:
        _section("a step's time", ("part", "seconds", "share"), _parts(times))
    _section("timelines of steps", ("", "file"), document["timelines"].items())
    checkpoints = [(c.get("name"), _step_of(c), c.get("sampler_path") or c.get("state_path"))
                   for c in document["checkpoints"]]  # fmt: skip
    _section("checkpoints", ("name", "step", "path"), checkpoints)
    _tell_files(document["files"])
    _section("provenance", ("", ""), facts(document["provenance"]))
    for name, marks in ((f"{run.sweep}/{run.name}", of_run), (run.sweep, of_sweep)):
        if marks.notes or marks.tags or marks.starred:
            print()
            tell_marks(name, marks)
    for noun, count in document["skipped"].items():
        if count:
            lines = plural(count, noun.removesuffix("s"))
            print(f"\n{lines} of the run's metrics files could not be read")
    return tell_problems(registry.problems)


def _tell_files(files: Sequence[_File]) -> None:
    _section("files", ("file", "bytes"), [(f["path"], f["size"]) for f in files[:_FILES]])
    if len(files) > _FILES:
        print(f"... and {len(files) - _FILES} more")


def _parts(times: StepTimes) -> Iterator[tuple[str, str, str]]:
    yield "whole step", f"{times.seconds:.3g}", ""
    for name, seconds in times.parts.items():
        yield name, f"{seconds:.3g}", f"{times.share(name):.0%}"


def _step_of(checkpoint: Mapping[str, object]) -> object:
    """Return the position of a checkpoint in the training: the batch, and the epoch if it is
    recorded. For the last checkpoint, which has no batch, return the number of completed epochs."""
    batch, epoch = checkpoint.get("batch"), checkpoint.get("epoch")
    if not epoch:
        return batch
    if not batch:  # the last checkpoint has no batch
        return f"after {epoch} epoch{'' if epoch == 1 else 's'}"
    return f"epoch {epoch}, {batch}"


def _section(title: str, columns: tuple[str, ...], rows: Iterable[Sequence[object]]) -> None:
    shown = list(rows)
    if shown:
        print(f"\n{title}")
        print_table(columns, shown)


def facts(provenance: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield (key, text) for each fact about the origin of a run. Long texts are cut."""
    for key, value in dotted(provenance):
        if value is None or value in ([], {}):
            continue
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        yield key, text if len(text) <= _FACT else f"{text[: _FACT - 3]}..."


def _document(
    run: RecordedRun, marks: Marks, of_sweep: Marks, times: StepTimes | None
) -> _Document:
    history, files = run.readable_history, run.readable(lambda: _files(run), [])
    charts = timelines(file["path"] for file in files)
    return {
        "run": {**run.record(), "path": run.path},
        "command": run.command if isinstance(run, SweepRun) else None,
        "provenance": run.provenance if isinstance(run, SweepRun) else {},
        "wandb": run.wandb if isinstance(run, SweepRun) else None,
        "marks": marks.record(),
        "sweep_marks": of_sweep.record(),
        "lineage": [above.record() for above in run.lineage] if isinstance(run, SweepRun) else [],
        "attempts": _attempts(run),
        "checkpoints": run.readable(run.checkpoint_records, []),
        "last_metrics": last_values(history.rows),
        "step_times": times._asdict() if times else None,
        "timelines": {kind: place_of(run.store, path) for kind, path in charts.items()},
        "files": files,
        "skipped": {"malformed lines": history.malformed, "torn last lines": history.torn},
    }


def _attempts(run: RecordedRun) -> list[_Attempt]:
    if not isinstance(run, SweepRun):
        return []
    attempts: list[_Attempt] = []
    for attempt in range(1, run.attempts + 1):
        ended, origin = run.ended(attempt), run.origin_of(attempt)
        launch: dict[str, object] = {"short": origin.code} if origin else {}
        launch |= {key: origin.get(key) for key in _OF_LAUNCH} if origin else {}
        attempt_record: _Attempt = {
            "attempt": attempt,
            "events": [event.value for number_, event in run.events if number_ == attempt],
            "started": ended.started,
            "ended": ended.ended,
            "wall_s": ended.wall_s,
            "reason": ended.reason,
            "code": ended.code,
            "signal": ended.signal,
            "host": ended.host,
            "max_rss_bytes": ended.max_rss_bytes,
            "launch": launch,
        }
        if run.launch.backends:
            attempt_record["backend"] = run.backend_of(attempt)
        if run.launch.gpus:
            attempt_record["gpus"] = ended.gpus
        if sessions := ended.sessions or run.heartbeat(attempt).sessions:
            attempt_record["sessions"] = list(sessions)
        attempts.append(attempt_record)
    return attempts


def _files(run: RecordedRun) -> list[_File]:
    entries = [entry for folder in run.log_paths() for entry in run.store.list(folder)]
    return [{"path": e.path, "size": e.size} for e in sorted(entries, key=lambda entry: entry.path)]
