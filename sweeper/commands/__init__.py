"""The verbs of the command line, one file each. A file has `add_arguments`, and `run`, which does
the work and returns the exit code. It is loaded when its verb is typed, so that it does not slow
down other verbs."""

import importlib
from argparse import ArgumentParser, Namespace
from typing import Protocol, cast

__all__ = ["EXAMPLES", "GROUPS", "VERBS", "Verb", "load"]

GROUPS = {
    "start": ("init", "plan", "launch"),
    "watch": ("status", "watch", "logs", "attach", "alarms"),
    "steer": ("pause", "resume", "parallel", "cancel", "retry", "stop"),
    "read": (
        *("ls", "show", "best", "diff", "compare", "analyze"),
        *("sql", "rollouts", "export", "costs", "checkpoints"),
    ),
    "keep and clean up": ("note", "archive", "rename", "delete", "gc", "sync"),
    "set up": ("doctor", "engine", "prices", "notify", "tasks", "mcp", "skill"),
}
"""The verbs, in the order and under the headings of `sweeper --help`."""

VERBS = {
    "launch": "launch a grid, or continue its sweep",
    "plan": "show what a launch would start",
    "status": "show the state of sweeps, or of one sweep's runs",
    "watch": "watch a sweep live, on the whole screen",
    "ls": "list runs and their results",
    "best": "show the best cells of a sweep",
    "show": "show everything about one run",
    "note": "add notes, tags and stars to a sweep or a run",
    "diff": "compare the settings and results of runs",
    "sql": "query runs, metrics, rollouts and checkpoints with SQL",
    "rollouts": "show what runs sampled",
    "export": "export runs to CSV, Parquet or W&B",
    "gc": "find and remove files that nothing needs",
    "logs": "show what runs print",
    "attach": "open the tmux windows of a sweep",
    "alarms": "list what is wrong with runs",
    "cancel": "stop runs for good",
    "retry": "start failed runs again, or finished ones",
    "pause": "start no more runs of a sweep for now",
    "resume": "continue a paused sweep, or one without a launcher",
    "parallel": "change how many jobs of a sweep run at once",
    "stop": "end the launcher of a sweep; its runs continue",
    "archive": "hide a sweep from lists",
    "rename": "rename a sweep",
    "delete": "delete a sweep and everything it recorded",
    "analyze": "write the report of a sweep: what won, and whether that is real",
    "notify": "send the notifications of a sweep, or test them",
    "costs": "show the tokens and dollars that runs used",
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
"""What each verb does, for `sweeper --help` and the verb's own help."""

EXAMPLES = {
    "launch": "sweeper launch grids/quickstart.yaml --wait",
    "plan": "sweeper plan grids/quickstart.yaml max_steps=5",
    "status": "sweeper status quickstart",
    "watch": "sweeper watch quickstart",
    "ls": "sweeper ls quickstart --where 'learning_rate < 1e-2'",
    "best": "sweeper best quickstart",
    "show": "sweeper show quickstart/lr=8e-3,rank=16,seed=0",
    "note": "sweeper note quickstart 'a first look' --tag paper",
    "diff": "sweeper diff quickstart/lr=8e-3,rank=4,seed=0 quickstart/lr=8e-3,rank=16,seed=0",
    "sql": "sweeper sql 'select cell, avg(value) from runs group by 1'",
    "rollouts": "sweeper rollouts grpo/lr=1e-3,seed=0 --best",
    "export": "sweeper export quickstart --format csv --out quickstart.csv",
    "gc": "sweeper gc",
    "logs": "sweeper logs quickstart/lr=8e-3,rank=16,seed=0 --lines 3",
    "attach": "sweeper attach quickstart",
    "alarms": "sweeper alarms quickstart",
    "cancel": "sweeper cancel quickstart 'lr=3e-2*'",
    "retry": "sweeper retry quickstart",
    "pause": "sweeper pause quickstart --runs",
    "resume": "sweeper resume quickstart",
    "parallel": "sweeper parallel quickstart 8",
    "stop": "sweeper stop quickstart",
    "archive": "sweeper archive quickstart",
    "rename": "sweeper rename quickstart first-try",
    "delete": "sweeper delete quickstart --yes",
    "analyze": "sweeper analyze quickstart",
    "notify": "sweeper notify quickstart --test",
    "costs": "sweeper costs quickstart --by cell",
    "checkpoints": "sweeper checkpoints quickstart",
    "prices": "sweeper prices",
    "compare": "sweeper compare quickstart/lr=8e-3,rank=4 quickstart/lr=8e-3,rank=16",
    "mcp": "sweeper mcp --budget runs=20,usd=5",
    "skill": "sweeper skill --install .claude/skills",
    "engine": "sweeper engine status",
    "sync": "sweeper sync",
    "tasks": "sweeper tasks check tasks/",
    "doctor": "sweeper doctor",
    "init": "sweeper init rl --out rl.yaml",
}
"""A command for each verb's help."""


class Verb(Protocol):
    """The functions in the file of a verb."""

    def add_arguments(self, verb: ArgumentParser) -> None:
        """Declare the verb's arguments."""
        ...

    def run(self, arguments: Namespace) -> int:
        """Run the verb. Return the exit code."""
        ...


def load(name: str) -> Verb:
    """Load the file of a verb."""
    return cast(Verb, importlib.import_module(f"sweeper.commands.{name}"))
