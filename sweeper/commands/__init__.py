"""The verbs of the command line, one file each. A file has `add_arguments`, and `run`, which does
the work and returns the exit code. It is loaded when its verb is typed, so that it does not slow
down other verbs."""

import importlib
from argparse import ArgumentParser, Namespace
from typing import Protocol, cast

__all__ = ["VERBS", "Verb", "load"]

VERBS = {
    "launch": "start a grid, or go on with it",
    "plan": "what launch would start",
    "status": "where sweeps, or the runs of one, stand",
    "watch": "a sweep on the whole screen, live",
    "ls": "runs and what they reached",
    "show": "everything about one run",
    "note": "notes, tags and stars of a sweep or a run",
    "diff": "how runs differ",
    "sql": "a SELECT over runs, metrics, rollouts, checkpoints",
    "rollouts": "what a run sampled",
    "export": "to CSV, Parquet or W&B",
    "gc": "remove what nobody needs",
    "logs": "what runs print",
    "attach": "look at a sweep's tmux windows",
    "alarms": "what is wrong with runs",
    "cancel": "stop runs, and start them no more",
    "retry": "start runs again",
    "pause": "start nothing new of a sweep for a while",
    "resume": "go on with a sweep that is paused, or has lost its launcher",
    "parallel": "have more or fewer jobs of a sweep at once",
    "stop": "end a sweep's launcher, and none of its runs",
    "archive": "put a sweep away: left out where none is named",
    "rename": "give a sweep another name",
    "delete": "remove a sweep and all that it recorded",
    "analyze": "the report: what won",
    "notify": "who is told of a sweep, and whether they were",
    "costs": "what runs used of their service, in tokens and dollars",
    "checkpoints": "what the service keeps of runs, and less of it",
    "prices": "what tokens cost, by model",
    "compare": "two sweeps cell by cell, or two cells",
    "mcp": "let coding agents work with sweeps, within a budget",
    "skill": "how coding agents do research with sweeper",
    "engine": "the local Tinker-compatible service: start, status, stop",
    "sync": "bring what workers that died left here into its store",
    "tasks": "check tasks for a model that works in a shell",
    "doctor": "is what a sweep needs there?",
    "init": "write a commented grid for a recipe, to start from",
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
