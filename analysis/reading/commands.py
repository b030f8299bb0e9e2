"""Makes commands that can be pasted in any folder of this machine. A command for a launch runs
in a subshell, in which it first changes to the folder of the original launch."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence

from sweeper.analysis.reading.frames import RunData, SweepData
from sweeper.sweep.launch_settings import Launch


def _program() -> list[str]:
    """Return the words that start this installation of sweeper in a shell: `sweeper` if PATH finds
    this installation, else the path of its script or, without a script, `python -m sweeper`."""
    script = os.path.join(os.path.dirname(sys.executable), "sweeper")
    program = shutil.which("sweeper")
    if program is not None and os.path.exists(script) and os.path.samefile(program, script):
        return ["sweeper"]
    return [script] if os.path.exists(script) else [sys.executable, "-P", "-m", "sweeper"]


def _from(folder: str | None, path: str) -> str:
    """Return a path relative to `folder` if it is inside `folder`; else return it unchanged."""
    if folder is None or "://" in path:
        return path
    below = os.path.relpath(path, folder)
    return path if below.split(os.sep)[0] == os.pardir else below


def _folder(data: SweepData) -> str | None:
    """Return the folder where the sweep was launched. None if this machine does not have it."""
    folder = _typed_in(data)
    return folder if folder is not None and os.path.isdir(folder) else None


def _typed_in(data: SweepData) -> str | None:
    """Return the folder in which the user typed the launch command. If that was not recorded,
    return the recorded working folder of the runs, or None if the grid sets it or none was
    recorded."""
    launched = data.provenance
    options = Launch() if data.plan is None else data.plan.launch
    usual = launched.get("cwd") if options.cwd in (None, ".") else None
    folder = launched.get("typed_in") or usual
    return folder if isinstance(folder, str) and folder else None


def elsewhere(data: SweepData) -> str | None:
    """Return a sentence that says in which folder a launch must be typed. None if this machine has
    the folder, since the command then changes to it."""
    if _folder(data) is not None:
        return None
    folder, host = _typed_in(data), data.provenance.get("host") or "another machine"
    was = "" if folder is None else f", which was {folder} on {host}"
    return f"Run it in the project's folder{was}: paths in the grid are relative to it."


def launching(data: SweepData, grid: str, overrides: Sequence[str]) -> str:
    """Return the command that launches a grid into the sweep's store. `grid` is the grid's full
    path or address."""
    folder = _folder(data)
    words = [*_program(), "launch", _from(folder, grid), *overrides]
    words += ["--root", _from(folder, data.root)] if data.root else []
    line = shlex.join(words)
    return line if folder is None else f"(cd {shlex.quote(folder)} && {line})"


def analysing(data: SweepData, prices: Mapping[str, float]) -> str:
    """Return the command that makes this report."""
    if data.root and len(data.paths) == 1:
        words = [*_program(), "analyze", data.name, "--root", data.root]
    else:
        words = [*_program(), "analyze", *data.paths]
    planned = data.plan and data.plan.metric
    metric = data.metric
    if metric is not None:
        if planned is None or planned.name != metric.name:
            words += ["--metric", metric.name, "--goal", metric.goal]
        elif planned.goal != metric.goal:
            words += ["--goal", metric.goal]
        usual = planned.at if planned is not None and planned.name == metric.name else "auto"
        # `auto` was resolved to this value, and will be again, so the command needs no `--at`.
        usual = metric.at if usual == "auto" and (data.ends or metric.at == "last") else usual
        words += ["--at", metric.at] if metric.at != usual else []
        rules = planned if planned is not None and planned.name == metric.name else None
        for flag, value, usual in (
            ("--noise", metric.noise, "auto" if rules is None else rules.noise),
            ("--failed", metric.failed, "bound" if rules is None else rules.failed),
        ):
            words += [flag, value] if value != usual else []
        if metric.by is not None and metric.by != (None if rules is None else rules.by):
            words += ["--by", metric.by]
    for key in data.own_keys.ignored:
        words += ["--ignore", key]
    for key in data.own_keys.named:
        words += ["--seed", key]
    if prices:
        words += ["--prices", ",".join(f"{k}={v:g}" for k, v in sorted(prices.items()))]
    return shlex.join(words)


def reading_logs(data: SweepData) -> tuple[str, str] | None:
    """Return the command that shows the log of a run, as two parts: before and after the run's
    name. None for runs in plain folders, which have no log, and for sweeps in different stores."""
    roots = {os.path.dirname(path.rstrip("/")) for path in data.paths}
    if not data.root or len(roots) > 1:
        return None
    return shlex.join([*_program(), "logs"]), shlex.join(["--root", data.root])


def run_to_log(data: SweepData, run: RunData) -> str | None:
    """Return the name of a run for the command of `reading_logs`. None if the run has
    no attempts."""
    if not run.attempts:
        return None
    return shlex.quote(run.name if len(data.names) > 1 else f"{data.name}/{run.name}")


def listing(data: SweepData, state: str) -> str:
    """Return the command that lists the runs in a state."""
    return shlex.join([*_program(), "ls", data.names[0], "--state", state, "--root", data.root])


def reproducing(data: SweepData, prices: Mapping[str, float]) -> list[str]:
    """Return the commands that launch this sweep again (if its grid came from a file) and make this
    report."""
    lines: list[str] = []
    if data.plan is not None and data.plan.grid_path:
        path, folder = data.plan.grid_path, _typed_in(data)
        whole = path if "://" in path or folder is None else os.path.join(folder, path)
        lines.append(launching(data, whole, data.plan.overrides))
    return [*lines, analysing(data, prices)]
