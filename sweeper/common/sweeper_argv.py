"""How sweeper starts its own programs: with this interpreter, and nothing of the current folder on
the module path, where a `json.py` or a `sweeper/` of the user's may lie."""

import os
import sys
from collections.abc import Sequence

_WORKER, _ARRAY = "sweeper.worker.main", "sweeper.worker.array"

# What runs in a recipe's interpreter: by path, since that one may have no sweeper.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BOOTSTRAP = os.path.join(_PACKAGE, "recipe", "bootstrap.py")


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
    """Return the argv of the worker for one attempt of a run of the sweep at `folder`. Backends
    find their jobs by its last two elements. `env_file`: where the environment lies without which
    the store cannot be reached; `python`: the interpreter, where it is not this one; `restarts`:
    the variable in which the backend counts how often it has started the job again, and what that
    says the first time; `bare`: what starts a module of sweeper's where there is no sweeper yet;
    `shared_store`: whether it reaches the store through a process that workers share."""
    options = [] if env_file is None else ["--env", env_file]
    if restarts is not None:
        variable, first = restarts
        options += ["--restarts", variable, "--first", str(first)]
    if shared_store:
        options += ["--store", "shared"]
    begin = bare or [python or sys.executable, "-P", "-m"]
    return [*begin, _WORKER, *options, folder, token]


def array_command(command: Sequence[str], root: str, table: str) -> list[str]:
    """Return the argv of a child of an array job that finds out by its index and the `table` below
    `root` which token goes to the end of `command`."""
    at = command.index(_WORKER) if _WORKER in command else 0
    if at and command[at - 1] != "-m":  # where there is no sweeper yet: that is made once
        return [*command[:at], _ARRAY, root, table, "-P", "-m", *command[at:]]
    return [command[0], "-P", "-m", _ARRAY, root, table, *command]
