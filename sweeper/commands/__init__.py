"""The verbs of the command line. The file of a verb defines `add_arguments` and `run`. `run`
returns the exit code. Files are loaded on demand.

To write a verb, see CONTRIBUTING.md. Helpers for verbs:

    commands/arguments.py   shared arguments: `required_sweep`, `runs_of_any_sweeps`, `json`
    commands/selection.py   the sweeps and runs that these choose: `open_registry`, `open_chosen`
    terminal.py             printing: `say`, `print_table`, `warn`, `number`, `duration`
    commands/output.py      more printing: `print_json_answer`, `print_text`, `confirmed`
    results/problems.py     `tell_problems(registry.problems)`: the exit code of a verb that reads
    errors.py               errors to raise: `UsageError`, `NotFound`, `EnvironmentFailure`
    sweep/hint.py           `hint("ls", name, root=root)`: a command in a message

Methods of a registry: `choose` returns the runs that arguments select. `handles` returns the runs
of a sweep or of plain folders, and `all_handles` also returns retired runs. `sweep_records` returns
a row for each sweep that is not archived. A run of a sweep (`SweepRun` in `results/sweeps.py`) has
`events`, `times` and `outcome`. The `state` of a run is a `State`, or `NoState.UNKNOWN` for the
folder of another program.
"""

import importlib
from collections.abc import Sequence

TYPE_CHECKING = False  # importing argparse and typing delays the start by milliseconds
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

_BY_HEADING: "dict[str, dict[str, tuple[str, ...]]]" = {
    "start": {
        "init": (
            "write a grid for a recipe, or from a file of another program",
            "rl --out rl.yaml",
        ),
        "data": (
            "show the examples that a run would train on",
            "grids/quickstart.yaml --examples 2",
        ),
        "plan": ("show what a launch would start", "grids/quickstart.yaml max_steps=5"),
        "launch": ("launch a grid, or continue its sweep", "grids/quickstart.yaml --wait"),
        "run": ("start a command as a run, without a grid", "-f -- python -c 'print(1 + 1)'"),
    },
    "watch": {
        "status": ("show the state of sweeps, or of one sweep's runs", "quickstart"),
        "watch": ("watch a sweep live, on the whole screen", "quickstart"),
        "logs": ("show what runs print", "quickstart/lr=8e-3,rank=16,seed=0 --lines 3"),
        "attach": ("open the tmux windows of a sweep", "quickstart"),
        "alarms": ("list what is wrong with runs", "quickstart"),
    },
    "steer": {
        "pause": ("start no more runs of a sweep for now", "quickstart --runs", "steer"),
        "resume": ("continue a paused sweep, or a sweep without a launcher", "quickstart", "steer"),
        "parallel": ("change how many jobs of a sweep run at once", "quickstart 8", "steer"),
        "cancel": ("stop runs for good", "quickstart 'lr=3e-2*'", "steer"),
        "retry": ("start failed or finished runs again", "quickstart", "steer"),
        "stop": ("end the launcher of a sweep; its runs continue", "quickstart", "steer"),
    },
    "read": {
        "ls": ("list runs and their results", "quickstart --where 'learning_rate < 1e-2'"),
        "show": ("show everything about one run", "quickstart/lr=8e-3,rank=16,seed=0"),
        "best": ("show the best cells of a sweep", "quickstart"),
        "compare": (
            "compare runs, two cells, two sweeps, or checkpoints",
            "quickstart/lr=8e-3,rank=4 quickstart/lr=8e-3,rank=16",
        ),
        "analyze": (
            "write the report of a sweep: what won, and whether to believe it",
            "quickstart",
        ),
        "sql": (
            "query runs, metrics, rollouts and checkpoints with SQL",
            "'select cell, avg(value) from runs group by 1'",
        ),
        "rollouts": ("show what runs sampled", "grpo/lr=1e-3,seed=0 --best"),
        "export": (
            "export runs to CSV, Parquet or W&B",
            "quickstart --format csv --out quickstart.csv",
        ),
        "costs": (
            "show the tokens and dollars that runs used, or the prices",
            "quickstart --by cell",
        ),
        "checkpoints": ("list and delete checkpoints that the service keeps", "quickstart"),
        "weights": (
            "download the weights of a run, or of a sweep's best run",
            "quickstart --to winner",
        ),
        "chat": ("talk with the weights of a run, or of a sweep's best run", "quickstart", "chat"),
        "endpoint": (
            "serve the weights of a run to programs, over an API like OpenAI's",
            "quickstart --port 8000",
            "chat",
        ),
    },
    "keep and clean up": {
        "note": (
            "add notes, tags and stars to a sweep or a run",
            "quickstart 'a first look' --tag paper",
        ),
        "sweep": ("archive, rename or delete a sweep", "archive quickstart"),
        "sweep archive": ("hide a sweep from lists", "quickstart", "sweep"),
        "sweep rename": ("rename a sweep", "quickstart first-try", "sweep"),
        "sweep delete": ("delete a sweep and everything it recorded", "quickstart --yes", "sweep"),
        "store": ("remove unneeded files, or upload files of dead workers", "gc"),
        "store gc": ("find and remove files that nothing needs", ""),
        "store sync": ("upload files that dead workers left on this machine", ""),
    },
    "set up": {
        "doctor": ("check that this machine has everything that a sweep needs", ""),
        "doctor tasks": ("check terminal tasks for mistakes", "tasks/"),
        "doctor notify": ("send the notifications of a sweep, or test them", "quickstart --test"),
        "engine": ("start, inspect or stop the local Tinker-compatible service", "status"),
        "agent": (
            "start coding agents, or serve them by MCP and give them skills",
            "skill --install .claude/skills",
        ),
        "agent mcp": (
            "serve coding agents by MCP, within a budget",
            "--budget runs=20,usd=5",
            "agent",
        ),
        "agent skill": (
            "print or install the skills for coding agents",
            "--install .claude/skills",
            "agent",
        ),
        "agent start": (
            "start a coding agent in a sandbox, with tools and a budget",
            "--model M --prompt gsm8k --image my-agent",
            "agent_start",
        ),
        "agent prompts": ("list or print task prompts for agents", "gsm8k", "agent_start"),
        "agent transcript": ("list started agents, or print what an agent did", "", "agent_start"),
    },
}
"""The verbs under their headings in `sweeper --help`. An entry has a description and the
arguments of a working example. If the verb's file has another name than the verb, the entry also
has the name of the file, which defines several verbs in a table `VERBS`. Verbs of two words,
such as `sweep archive`, are listed in the help of the first word."""


class Entry:
    """A verb (a subcommand such as `ls`): the heading and the description in the help, a working
    example command, and the name of the verb's file (empty if named like the verb)."""

    def __init__(
        self, name: str, heading: str, summary: str, arguments: str, file: str = ""
    ) -> None:
        self.heading, self.summary, self.file = heading, summary, file
        self.example = f"sweeper {name} {arguments}".rstrip()


VERBS = {
    name: Entry(name, heading, *row)
    for heading, rows in _BY_HEADING.items()
    for name, row in rows.items()
}
PARENTS = ("sweep", "store", "agent")
"""First words of verbs that do nothing without a second word."""

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
"""{former name of a verb: its new name}. Former names still work, but help and completion leave
them out."""


def of_today(words: Sequence[str]) -> tuple[list[str], str | None]:
    """Replace a verb's former name at the start of a command line. Return the words, and a
    sentence about the new name (None if nothing was replaced)."""
    for count in (1, 2):
        former = " ".join(words[:count])
        if len(words) >= count and former in FORMER:
            name = FORMER[former]
            return [*name.split(), *words[count:]], f"sweeper {former} is now `sweeper {name}`"
    return list(words), None


def parts(verb: str) -> dict[str, str]:
    """Return a dict from second word to name, for the verbs whose first word is `verb`. For
    `sweep`, this is {"archive": "sweep archive", ...}."""
    whole = [name for name in VERBS if name.startswith(f"{verb} ")]
    return {name.partition(" ")[2]: name for name in whole}


class Verb:
    """The two functions of a verb. `add_arguments` declares the arguments. `run` executes the
    verb and returns the exit code."""

    def __init__(
        self, add_arguments: "Callable[[ArgumentParser], None]", run: "Callable[[Namespace], int]"
    ) -> None:
        self.add_arguments, self.run = add_arguments, run


def load(name: str) -> Verb:
    """Load the file of the verb `name`, and return the verb's functions."""
    file = VERBS[name].file
    module = importlib.import_module(f"sweeper.commands.{file or name.replace(' ', '_')}")
    return Verb(module.add_arguments, module.run) if not file else module.VERBS[name]
