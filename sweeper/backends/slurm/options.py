"""The options of Slurm (`launch.slurm`). Only `extra` can add other options to the command line of
sbatch. Only `setup` has lines that a shell runs."""

import re
from typing import Annotated, NamedTuple

from sweeper.fields.kinds import Duration, Flag, Integer, Item, Text, Texts
from sweeper.fields.options import Option, section_of
from sweeper.fields.sections import Reading

_FLAG = re.compile(r"--([a-z][a-z0-9-]*)(=[^\x00-\x1f\x7f]*)?\Z")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_OURS = (
    *("array", "batch", "chdir", "clusters", "comment", "error", "export", "export-file", "gid"),
    *("help", "ignore-pbs", "input", "job-name", "no-requeue", "open-mode", "output", "parsable"),
    *("quiet", "requeue", "signal", "test-only", "uid", "usage", "version", "wait", "wrap"),
)
TEXTS = ("partition", "account", "qos", "mem", "gres", "constraint")
"""Keys that are passed to sbatch unchanged, under its own names."""
_KEYED = {name: name for name in (*TEXTS, "time")} | {"cpus-per-task": "cpus"}


def _wrong_with_line(line: str) -> str | None:
    problem = "contains a newline or a control character: write each line as its own item"
    return problem if _CONTROL.search(line) else None


def _wrong_with_flag(flag: str) -> str | None:
    match = _FLAG.match(flag)
    if match is None:
        return _wrong_with_line(flag) or (
            f"{flag[:60]!r} is not an option of sbatch: write --name or --name=value"
        )
    # sbatch accepts abbreviated option names.
    if any(name.startswith(match[1]) for name in _OURS):
        return f"--{match[1]} is set by sweeper"
    if key := _KEYED.get(match[1]):
        return f"use the key {key} instead of --{match[1]}"
    return None


def _check(reading: Reading) -> None:
    limit, before = reading.values.get("time_s"), reading.values.get("signal_s")
    if limit is not None and before is not None and before > limit / 2:
        reading.problem("signal", f"{reading.path('signal')} must be at most half of time")


_WORD = Text(r"[^\x00-\x20\x7f]{1,200}", "{} contains a blank or a control character", numbers=True)
_TIME_DOC = (
    "The time limit of a job, with a unit, at least 60s. Shortly before the limit, the job is "
    "asked to stop, and then restarted."
)
_EXTRA = Texts(
    Item(
        {
            "pattern": r"^--[a-z][a-z0-9-]*(=[^\x00-\x1f\x7f]*)?$",
            "not": {"pattern": f"^--({'|'.join(_KEYED)})(=|$)"},
        },
        _wrong_with_flag,
    )
)
_EXTRA_DOC = "Other options of sbatch, --name or --name=value each."
_SETUP = Texts(Item({"pattern": r"^[^\x00-\x08\x0a-\x1f\x7f]*$"}, _wrong_with_line))
_SETUP_DOC = "Shell commands at the beginning of the batch script."
_REQUEUE_DOC = "Whether Slurm restarts a job that was preempted, lost its node or ran out of time."
_SIGNAL_DOC = (
    "How long before the time limit a job is asked to stop: at least 10s, at "
    "most half of the limit."
)
_MEM_DOC = "Memory on each node, in Slurm's notation: 4000, 32G."
_THROTTLE_DOC = "The largest number of tasks of an array that run at the same time."
_ARRAY_DOC = "The largest number of tasks in an array (default: as many as the cluster allows)."


class Options(NamedTuple):
    partition: Annotated[str | None, Option(_WORD, "The partition.", "gpu")] = None
    account: Annotated[str | None, Option(_WORD, "The account that is charged.", "lab")] = None
    qos: Annotated[str | None, Option(_WORD, "The quality of service.", "long")] = None
    mem: Annotated[str | None, Option(_WORD, _MEM_DOC, "32G")] = None
    gres: Annotated[str | None, Option(_WORD, "Generic resources: gpu:1.", "gpu:1")] = None
    constraint: Annotated[str | None, Option(_WORD, "Features that a node must have.", "a100")] = (
        None
    )
    time_s: Annotated[float | None, Option(Duration(60, unit=True), _TIME_DOC, "2h")] = None
    cpus: Annotated[int | None, Option(Integer(1), "CPUs of a job.", 4)] = None
    extra: Annotated[tuple[str, ...], Option(_EXTRA, _EXTRA_DOC, ["--exclusive"])] = ()
    setup: Annotated[tuple[str, ...], Option(_SETUP, _SETUP_DOC, ["module load python"])] = ()
    requeue: Annotated[bool, Option(Flag(), _REQUEUE_DOC)] = True
    # Slurm checks every half minute, so the signal may be up to a minute early.
    signal_s: Annotated[float, Option(Duration(10), _SIGNAL_DOC)] = 120.0
    throttle: Annotated[int | None, Option(Integer(1), _THROTTLE_DOC, 16)] = None
    array: Annotated[int | None, Option(Integer(1), _ARRAY_DOC, 500)] = None


SECTION = section_of(Options, check=_check)
