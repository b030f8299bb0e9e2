"""The verbs of the command line. A verb's file has `add_arguments`, and `run`, which returns the
exit code; short verbs of one kind share a file (`VERBS`). Files are loaded on demand."""

import importlib
from collections.abc import Sequence

TYPE_CHECKING = False  # importing argparse and typing delays the start by milliseconds
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

GROUPS = {
    "start": ("init", "data", "plan", "launch", "run"),
    "watch": ("status", "watch", "logs", "attach", "alarms"),
    "steer": ("pause", "resume", "parallel", "cancel", "retry", "stop"),
    "read": (
        *("ls", "show", "best", "compare", "analyze"),
        *("sql", "rollouts", "export", "costs", "checkpoints", "weights"),
        *("chat", "endpoint"),
    ),
    "keep and clean up": ("note", "sweep", "store"),
    "set up": ("doctor", "engine", "agent"),
}
"""The verbs, in the order and under the headings of `sweeper --help`."""

VERBS = {
    "launch": "launch a grid, or continue its sweep",
    "run": "start a command as a run, without a grid",
    "plan": "show what a launch would start",
    "data": "show the examples that a run would train on",
    "status": "show the state of sweeps, or of one sweep's runs",
    "watch": "watch a sweep live, on the whole screen",
    "ls": "list runs and their results",
    "best": "show the best cells of a sweep",
    "show": "show everything about one run",
    "note": "add notes, tags and stars to a sweep or a run",
    "sql": "query runs, metrics, rollouts and checkpoints with SQL",
    "rollouts": "show what runs sampled",
    "export": "export runs to CSV, Parquet or W&B",
    "logs": "show what runs print",
    "attach": "open the tmux windows of a sweep",
    "alarms": "list what is wrong with runs",
    "cancel": "stop runs for good",
    "retry": "start failed runs again, or finished ones",
    "pause": "start no more runs of a sweep for now",
    "resume": "continue a paused sweep, or one without a launcher",
    "parallel": "change how many jobs of a sweep run at once",
    "stop": "end the launcher of a sweep; its runs continue",
    "analyze": "write the report of a sweep: what won, and whether that is real",
    "costs": "show the tokens and dollars that runs used, or the prices",
    "checkpoints": "list and delete checkpoints that the service keeps",
    "weights": "download the weights of a run, or of a sweep's best run",
    "chat": "talk with the weights of a run, or of a sweep's best run",
    "endpoint": "serve such weights to programs, in OpenAI's form",
    "compare": "compare runs, two cells, two sweeps, or checkpoints",
    "engine": "start, inspect or stop the local Tinker-compatible service",
    "init": "write a grid for a recipe, or from a file of another program",
    "sweep": "archive, rename or delete a sweep",
    "sweep archive": "hide a sweep from lists",
    "sweep rename": "rename a sweep",
    "sweep delete": "delete a sweep and everything it recorded",
    "store": "remove what nothing needs, or upload what dead workers left",
    "store gc": "find and remove files that nothing needs",
    "store sync": "upload what dead workers left on this machine",
    "agent": "start coding agents, or serve them by MCP and give them skills",
    "agent mcp": "serve coding agents by MCP, within a budget",
    "agent skill": "print or install the skills for coding agents",
    "agent start": "start a coding agent in a sandbox, with tools and a budget",
    "agent prompts": "list or print task prompts for agents",
    "agent transcript": "list started agents, or print what one did",
    "doctor": "check that everything a sweep needs is there",
    "doctor tasks": "check terminal tasks for mistakes",
    "doctor notify": "send the notifications of a sweep, or test them",
}
"""What each verb does, for `sweeper --help` and the verb's own help."""

PARENTS = ("sweep", "store", "agent")
"""Verbs that do nothing without a second word."""

EXAMPLES = {
    "launch": "sweeper launch grids/quickstart.yaml --wait",
    "run": "sweeper run -f -- python -c 'print(1 + 1)'",
    "plan": "sweeper plan grids/quickstart.yaml max_steps=5",
    "data": "sweeper data grids/quickstart.yaml --examples 2",
    "status": "sweeper status quickstart",
    "watch": "sweeper watch quickstart",
    "ls": "sweeper ls quickstart --where 'learning_rate < 1e-2'",
    "best": "sweeper best quickstart",
    "show": "sweeper show quickstart/lr=8e-3,rank=16,seed=0",
    "note": "sweeper note quickstart 'a first look' --tag paper",
    "sql": "sweeper sql 'select cell, avg(value) from runs group by 1'",
    "rollouts": "sweeper rollouts grpo/lr=1e-3,seed=0 --best",
    "export": "sweeper export quickstart --format csv --out quickstart.csv",
    "logs": "sweeper logs quickstart/lr=8e-3,rank=16,seed=0 --lines 3",
    "attach": "sweeper attach quickstart",
    "alarms": "sweeper alarms quickstart",
    "cancel": "sweeper cancel quickstart 'lr=3e-2*'",
    "retry": "sweeper retry quickstart",
    "pause": "sweeper pause quickstart --runs",
    "resume": "sweeper resume quickstart",
    "parallel": "sweeper parallel quickstart 8",
    "stop": "sweeper stop quickstart",
    "analyze": "sweeper analyze quickstart",
    "costs": "sweeper costs quickstart --by cell",
    "checkpoints": "sweeper checkpoints quickstart",
    "weights": "sweeper weights quickstart --to winner",
    "chat": "sweeper chat quickstart",
    "endpoint": "sweeper endpoint quickstart --port 8000",
    "compare": "sweeper compare quickstart/lr=8e-3,rank=4 quickstart/lr=8e-3,rank=16",
    "engine": "sweeper engine status",
    "init": "sweeper init rl --out rl.yaml",
    "sweep": "sweeper sweep archive quickstart",
    "sweep archive": "sweeper sweep archive quickstart",
    "sweep rename": "sweeper sweep rename quickstart first-try",
    "sweep delete": "sweeper sweep delete quickstart --yes",
    "store": "sweeper store gc",
    "store gc": "sweeper store gc",
    "store sync": "sweeper store sync",
    "agent": "sweeper agent skill --install .claude/skills",
    "agent mcp": "sweeper agent mcp --budget runs=20,usd=5",
    "agent skill": "sweeper agent skill --install .claude/skills",
    "agent start": "sweeper agent start --model M --prompt gsm8k --image my-agent",
    "agent prompts": "sweeper agent prompts gsm8k",
    "agent transcript": "sweeper agent transcript",
    "doctor": "sweeper doctor",
    "doctor tasks": "sweeper doctor tasks tasks/",
    "doctor notify": "sweeper doctor notify quickstart --test",
}
"""A command for each verb's help."""

FORMER = {
    "diff": "compare",
    "prices": "costs --prices",
    "archive": "sweep archive",
    "rename": "sweep rename",
    "delete": "sweep delete",
    "gc": "store gc",
    "sync": "store sync",
    "mcp": "agent mcp",
    "skill": "agent skill",
    "tasks check": "doctor tasks",
    "notify": "doctor notify",
}
"""Names that verbs had before. They still work, and are neither listed nor completed."""


def of_today(given: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the arguments with a former name of a verb replaced by the one of today, and a
    sentence that says so; None if there is nothing to say."""
    for count in (1, 2):
        before = " ".join(given[:count])
        if len(given) >= count and before in FORMER:
            now = FORMER[before]
            return [*now.split(), *given[count:]], f"sweeper {before} is now `sweeper " + now + "`"
    return list(given), None


def parts(verb: str) -> dict[str, str]:
    """Return the second words that a verb takes, each with its whole name."""
    whole = [name for name in VERBS if name.startswith(f"{verb} ")]
    return {name.partition(" ")[2]: name for name in whole}


class Verb:
    """The two functions of a verb: `add_arguments` declares its arguments, and `run` does its work
    and returns the exit code."""

    def __init__(
        self, add_arguments: "Callable[[ArgumentParser], None]", run: "Callable[[Namespace], int]"
    ) -> None:
        self.add_arguments, self.run = add_arguments, run


_SHARED = {
    **dict.fromkeys(GROUPS["steer"], "steer"),
    **dict.fromkeys(parts("sweep").values(), "sweep"),
    **dict.fromkeys(parts("agent").values(), "agent"),
    **dict.fromkeys(("chat", "endpoint"), "chat"),
    **dict.fromkeys(("agent start", "agent prompts", "agent transcript"), "agent_start"),
}
"""Files with several verbs, by verb."""


def load(name: str) -> Verb:
    """Load the file of a verb, and return its functions."""
    file = _SHARED.get(name, name.replace(" ", "_"))
    module = importlib.import_module(f"sweeper.commands.{file}")
    return module.VERBS[name] if name in _SHARED else Verb(module.add_arguments, module.run)
