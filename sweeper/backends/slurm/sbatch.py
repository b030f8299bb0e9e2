"""Converts `launch.slurm` and the defaults in the user's configuration file to options of sbatch,
`--name=value`, and a batch script."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from sweeper.backends.slurm.options import TEXTS, Options
from sweeper.fields.options import read_options

_JOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "job.py")


def asked_of(defaults: Mapping[str, object], job_options: Mapping[str, object]) -> Options:
    """Return a job's options, with `defaults` for the options that the job does not set."""
    resources = {**defaults, **job_options}
    options = read_options(Options, resources, "launch.slurm")
    if options.time_s is None:
        return options
    # `time` and `signal` may come from different places, so their combination was not checked
    # before.
    most = options.time_s / (2 if resources.get("signal_s") else 4)
    return options._replace(signal_s=min(options.signal_s, most))


def arguments_of(options: Options) -> list[str]:
    """Return the options of sbatch for a job's resources."""
    texts = {name: getattr(options, name) for name in TEXTS}
    arguments = [f"--{name}={text}" for name, text in texts.items() if text is not None]
    if options.cpus is not None:
        arguments.append(f"--cpus-per-task={options.cpus}")
    if options.time_s is not None:
        arguments.append(f"--time={_clock(options.time_s)}")
    arguments.append(f"--signal=B:TERM@{max(1, round(options.signal_s))}")
    arguments.append("--requeue" if options.requeue else "--no-requeue")
    return [*arguments, *options.extra]


def _clock(seconds: float) -> str:
    whole = max(1, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def script(setup: Sequence[str], table: str) -> str:
    """Return the batch script of a job, or of every task of an array."""
    program = " ".join(shlex.quote(part) for part in (sys.executable, "-E", "-s", _JOB, table))
    before: list[str] = []
    if setup:
        # The recipe also gets the variables that these lines change. The environment before them
        # shows which variables have changed.
        before = ['export SWEEPER_BEFORE="$(base64 -w0 < "/proc/$$/environ")"', *setup, ""]
    return "\n".join(("#!/bin/bash", *before, f"exec {program}", ""))
