"""`sweeper doctor tasks`: checks a folder of terminal tasks."""

from argparse import ArgumentParser, Namespace

from sweeper.commands import arguments as shared
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.sandbox import KINDS, NotThere, check_kind, missing
from sweeper.sandbox.tasks.choosing import choice_of
from sweeper.sandbox.tasks.task_checks import Checked, check_tasks, notes_of
from sweeper.sweep.labels import plural
from sweeper.terminal import number, print_json, print_table, say, warn


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper doctor tasks`."""
    options = shared.group(verb, "which tasks")
    options.add_argument(
        "folder", metavar="FOLDER", help="a task (a folder with task.toml), or a folder of tasks"
    )
    options.add_argument(
        "--task-ids",
        metavar="NAMES",
        help="only tasks with these names or globs, separated by commas",
    )
    options.add_argument(
        "--dataset",
        metavar="NAME@VERSION",
        help="tasks of this dataset in a registry; FOLDER is a checkout of the registry",
    )
    options.add_argument(
        "--registry", metavar="FILE", help="the registry's file (default: FOLDER/registry.json)"
    )
    how = shared.group(verb, "how to try the tasks")
    how.add_argument(
        "--environment",
        default="bubblewrap",
        metavar="KIND",
        help=f"the environment in which to try the tasks: {', '.join(KINDS)} (default: bubblewrap)",
    )
    shared.flag(how, "--unsafe", "allow an environment without isolation")
    shared.flag(how, "--read-only", "only read the tasks, do not try them")
    how.add_argument(
        "--at-once", type=int, default=2, metavar="N", help="environments at once (default: 2)"
    )
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Check the tasks, and print the results. Return exit code 2 if a task has a mistake."""
    if arguments.at_once < 1:
        raise UsageError("--at-once takes 1 or more")
    kind = None if arguments.read_only else str(arguments.environment)
    try:
        check_kind(str(arguments.environment))
    except ValueError as error:
        raise UsageError(str(error)) from None
    if kind is not None and (lacking := missing(kind)) is not None:
        raise EnvironmentFailure(f"tasks cannot be tried: {lacking}; --read-only only reads them")
    try:
        checked = check_tasks(
            arguments.folder,
            kind,
            unsafe=arguments.unsafe,
            at_once=arguments.at_once,
            choice=choice_of(vars(arguments)),
        )
    except NotThere as error:
        raise UsageError(str(error).replace("set `unsafe: true`", "use --unsafe")) from None
    notes = [note for task in checked.tasks for note in notes_of(task, arguments.environment)]
    if arguments.json:
        print_json({"schema": 1, **_document(checked), "notes": notes})
    else:
        _print(checked, notes)
    return 2 if checked.mistakes else 0


def _document(checked: Checked) -> dict[str, object]:
    tried = {trial.task.folder: trial for trial in checked.tried}
    rows: list[dict[str, object]] = []
    for task in checked.tasks:
        trial = tried.get(task.folder)
        rewards = {"solved": trial.solved, "empty": trial.empty} if trial else {}
        rows.append({"name": task.name, "folder": task.folder, "steps": len(task.steps), **rewards})
    return {"tasks": rows, "problems": list(checked.mistakes)}


def _print(checked: Checked, notes: list[str]) -> None:
    for line in checked.mistakes:
        say(line)
    for note in notes:
        warn(note)
    if checked.tried:
        rows = [
            (trial.task.name, len(trial.task.steps), _shown(trial.solved), _shown(trial.empty))
            for trial in checked.tried
        ]
        print_table(("task", "steps", "solution earns", "nothing earns"), rows)
    mistakes = plural(len(checked.mistakes), "mistake")
    print(f"\n{plural(len(checked.tasks), 'task')} read, {mistakes}")


def _shown(value: float | None) -> str:
    return "" if value is None else number(value)
