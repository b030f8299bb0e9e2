"""Defines the section `launch.slurm` of a grid.

Values are data. No value can become an option of its own, and `extra` may not contain options that
sweeper sets itself (a job's name, its comment, its script). `setup` is the one exception: lines of
the user's own shell.
"""

import re

from sweeper.fields.kinds import Duration, Flag, Integer, Item, Text, Texts
from sweeper.fields.sections import Field, Reading, Section

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
    return (
        "contains a newline or a control character: write one line each"
        if _CONTROL.search(line)
        else None
    )


def _wrong_with_flag(flag: str) -> str | None:
    match = _FLAG.match(flag)
    if match is None:
        return _wrong_with_line(flag) or (
            f"{flag[:60]!r} is not an option of sbatch in one piece: --name or --name=value"
        )
    # sbatch accepts abbreviated option names.
    if any(name.startswith(match[1]) for name in _OURS):
        return f"--{match[1]} is set by sweeper"
    if key := _KEYED.get(match[1]):
        return f"instead of --{match[1]} use the key {key}"
    return None


def _check(reading: Reading) -> None:
    limit, before = reading.values.get("time_s"), reading.values.get("signal_s")
    if limit is not None and before is not None and before > limit / 2:
        reading.problem("signal", f"{reading.path('signal')} must be at most half of time")


_WORD = Text(r"[^\x00-\x20\x7f]{1,200}", "{} contains a blank or a control character", numbers=True)
SECTION = Section(
    Field("partition", _WORD, "The partition.", examples=("gpu",)),
    Field("account", _WORD, "The account that is charged.", examples=("lab",)),
    Field("qos", _WORD, "The quality of service.", examples=("long",)),
    Field("mem", _WORD, "Memory of a node, as Slurm writes it: 4000, 32G.", examples=("32G",)),
    Field("gres", _WORD, "Generic resources: gpu:1.", examples=("gpu:1",)),
    Field("constraint", _WORD, "Features that a node must have.", examples=("a100",)),
    Field(
        "time",
        Duration(60, unit=True),
        "The time limit; a job that approaches it is asked to stop, and is restarted. With "
        "its unit, at least 60s.",
        examples=("2h",),
        key="time_s",
    ),
    Field("cpus", Integer(1), "CPUs of a job.", examples=(4,)),
    Field(
        "extra",
        Texts(
            Item(
                {
                    "pattern": r"^--[a-z][a-z0-9-]*(=[^\x00-\x1f\x7f]*)?$",
                    "not": {"pattern": f"^--({'|'.join(_KEYED)})(=|$)"},
                },
                _wrong_with_flag,
            )
        ),
        "Other options of sbatch, --name or --name=value each.",
        examples=(["--exclusive"],),
    ),
    Field(
        "setup",
        Texts(Item({"pattern": r"^[^\x00-\x08\x0a-\x1f\x7f]*$"}, _wrong_with_line)),
        "Lines of shell that the batch script begins with.",
        examples=(["module load python"],),
    ),
    Field(
        "requeue",
        Flag(),
        "Whether Slurm restarts a job that was preempted, lost its node or ran out of time.",
        True,
    ),
    Field(
        "signal",
        Duration(10),
        (
            "How long before the time limit a job is asked to stop; at least 10s, at most half "
            "of the limit."
        ),
        "2m",  # Slurm checks every half a minute, and may be up to a minute early
        key="signal_s",
    ),
    Field("throttle", Integer(1), "The most tasks of an array that run at once.", examples=(16,)),
    Field(
        "array",
        Integer(1),
        "The most tasks of an array (default: what the cluster allows).",
        examples=(500,),
    ),
    check=_check,
)
