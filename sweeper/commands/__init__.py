"""The verbs of the command line, one file each. A file has `add_arguments`, and `run`, which does
the work and returns the exit code. It is loaded when its verb is typed, so that it does not slow
down other verbs."""

import importlib
from argparse import ArgumentParser, Namespace
from typing import Protocol, cast

__all__ = ["VERBS", "Verb", "load"]

VERBS = {
    "launch": "launch a grid, or continue a sweep",
    "plan": "show what a launch would start",
    "status": "show the state of sweeps, or of one sweep's runs",
    "watch": "watch a sweep live, on the whole screen",
    "ls": "list runs and their results",
    "show": "show everything about one run",
    "note": "add notes, tags and stars to a sweep or a run",
    "diff": "compare the settings and results of runs",
    "sql": "query runs, metrics, rollouts and checkpoints with SQL",
    "rollouts": "show what a run sampled",
    "export": "export runs to CSV, Parquet or W&B",
    "gc": "find and remove files that nothing needs",
    "logs": "show what runs print",
    "attach": "open a sweep's tmux windows",
    "alarms": "list what is wrong with runs",
    "cancel": "stop runs for good",
    "retry": "start failed runs again",
    "pause": "start no more runs of a sweep for now",
    "resume": "continue a paused sweep, or one without a launcher",
    "parallel": "change how many jobs of a sweep run at once",
    "stop": "end a sweep's launcher; its runs go on",
    "archive": "hide a sweep from lists",
    "rename": "rename a sweep",
    "delete": "delete a sweep and everything it recorded",
    "analyze": "write the report of a sweep: what won",
    "notify": "send the notifications of a sweep, or test them",
    "costs": "show tokens and dollars that runs used",
    "checkpoints": "list and delete checkpoints that the service keeps",
    "prices": "show the price of tokens, by model",
    "compare": "compare two sweeps, two cells, or checkpoints",
    "mcp": "serve coding agents by MCP, within a budget",
    "skill": "print or install the skill for coding agents",
    "engine": "start, inspect or stop the local Tinker-compatible service",
    "sync": "upload what dead workers left on this machine",
    "tasks": "check terminal tasks for mistakes",
    "doctor": "check that everything a sweep needs is there",
    "init": "write a commented grid for a recipe",
}
"""The descriptions in `sweeper --help`."""


class Verb(Protocol):
    """The functions in the file of a verb."""

    def add_arguments(self, verb: ArgumentParser) -> None:
        """Declare the verb's arguments."""
        ...

    def run(self, arguments: Namespace) -> int:
        """Run the verb. Returns the exit code."""
        ...


def load(name: str) -> Verb:
    """Load the file of a verb."""
    return cast(Verb, importlib.import_module(f"sweeper.commands.{name}"))
