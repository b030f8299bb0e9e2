"""Command lines that start sweeper's own programs. `-P` excludes the current folder from the
module path, since that folder may contain a `json.py` or a `sweeper/`."""

import os
import sys
from collections.abc import Sequence

_WORKER, _ARRAY = "sweeper.worker.main", "sweeper.worker.array"

# A module in a recipe's interpreter is started by its path, since sweeper may not be installed
# there. start.py runs bootstrap.py.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BOOTSTRAP = os.path.join(_PACKAGE, "recipe", "start.py")


def self_command(*arguments: str) -> list[str]:
    """Return the argv of `sweeper ARGUMENTS`."""
    return [sys.executable, "-P", "-m", "sweeper", *arguments]


def worker_command(  # noqa: PLR0913
    folder: str,
    token: str,
    env_file: str | None = None,
    *,
    python: str | None = None,
    restarts: tuple[str, int] | None = None,
    bare: Sequence[str] | None = None,
    shared_store: bool = False,
) -> list[str]:
    """Return the argv of the worker for one attempt (`token`) of a run of the sweep at `folder`.
    Backends identify jobs by the last two elements, `folder` and `token`. `env_file`: a file with
    the variables for access to the store. `python`: the interpreter (default: this one).
    `restarts`: the variable in which the backend counts restarts of the job, and the variable's
    value at the first start. `bare`: the result of `bare_command`, for machines without sweeper.
    `shared_store`: all workers of the machine use one process to access the store."""
    options = [] if env_file is None else ["--env", env_file]
    if restarts is not None:
        variable, first = restarts
        options += ["--restarts", variable, "--first", str(first)]
    if shared_store:
        options += ["--store", "shared"]
    begin = bare or [python or sys.executable, "-P", "-m"]
    return [*begin, _WORKER, *options, folder, token]


def array_command(command: Sequence[str], root: str, table: str) -> list[str]:
    """Return the argv of a task of an array job. The task looks up its token in the file `table`
    below `root`, and appends the token to `command`."""
    at = command.index(_WORKER) if _WORKER in command else 0
    if at and command[at - 1] != "-m":  # sweeper is not installed there yet.
        return [*command[:at], _ARRAY, root, table, "-P", "-m", *command[at:]]
    return [command[0], "-P", "-m", _ARRAY, root, table, *command]
