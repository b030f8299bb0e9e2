"""Converts `launch.slurm` and the defaults in the user's configuration file to options of sbatch
and a batch script.

Every value is one argument of sbatch, `--name=value`: no shell reads it, and none can become an
option of its own. The script contains the lines of `setup`, which are the user's own shell, and
quoted paths of ours.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TypedDict, cast

from sweeper.backends.slurm.options import SECTION, TEXTS

_JOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "job.py")


class Asked(TypedDict, total=False):
    """The parsed section; times in seconds."""

    partition: str
    account: str
    qos: str
    mem: str
    gres: str
    constraint: str
    time_s: float
    cpus: int
    extra: list[str]
    setup: list[str]
    requeue: bool
    signal_s: float
    throttle: int | None
    array: int | None


def asked_of(defaults: Mapping[str, object], given: Mapping[str, object]) -> Asked:
    """Merge a job's own options over the defaults."""
    return cast(Asked, {**defaults, **given})


def options(resources: Mapping[str, object]) -> list[str]:
    """Return the options of sbatch for a job's resources."""
    values = cast(Asked, SECTION.with_defaults(resources))
    texts = {name: values.get(name) for name in TEXTS}
    given = [f"--{name}={text}" for name, text in texts.items() if text is not None]
    if "cpus" in values:
        given.append(f"--cpus-per-task={values['cpus']}")
    before, limit = values.get("signal_s", 0.0), values.get("time_s")
    if limit is not None:
        given.append(f"--time={_clock(limit)}")
        # The two may come from different places, so nothing has compared them before.
        before = min(before, limit / (2 if resources.get("signal_s") else 4))
    given.append(f"--signal=B:TERM@{max(1, round(before))}")
    given.append("--requeue" if requeues(resources) else "--no-requeue")
    return [*given, *values.get("extra", ())]


def requeues(options: Mapping[str, object]) -> bool:
    """Return whether Slurm restarts a job that was preempted, lost its node or ran out of time."""
    return SECTION.with_defaults(options)["requeue"] is not False


def _clock(seconds: float) -> str:
    whole = max(1, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def script(setup: Sequence[str], table: str) -> str:
    """Return the batch script of a job, or of every task of an array."""
    program = " ".join(shlex.quote(part) for part in (sys.executable, "-E", "-s", _JOB, table))
    before: list[str] = []
    if setup:
        # The recipe also gets the variables that these lines change; the old values tell which.
        before = ['export SWEEPER_BEFORE="$(base64 -w0 < "/proc/$$/environ")"', *setup, ""]
    return "\n".join(("#!/bin/bash", *before, f"exec {program}", ""))
