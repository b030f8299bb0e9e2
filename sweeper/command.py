"""How sweeper starts its own programs: with this interpreter, and nothing of the current folder on
the module path, where a `json.py` or a `sweeper/` of the user's may lie."""

import os
import sys

__all__ = ["BOOTSTRAP", "self_command", "worker_command"]

# What runs in a recipe's interpreter: by path, since that one may have no sweeper.
BOOTSTRAP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recipe", "bootstrap.py")


def self_command(*arguments: str) -> list[str]:
    """The argv of `sweeper ARGUMENTS`."""
    return [sys.executable, "-P", "-m", "sweeper", *arguments]


def worker_command(
    folder: str,
    token: str,
    env_file: str | None = None,
    *,
    python: str | None = None,
    restarts: tuple[str, int] | None = None,
) -> list[str]:
    """The argv of the worker for one attempt of a run of the sweep at `folder`. Backends find
    their jobs by its last two elements. `env_file`: where the environment lies without which the
    store cannot be reached; `python`: the interpreter, where it is not this one; `restarts`: the
    variable in which the backend counts how often it has started the job again, and what that says
    the first time."""
    options = [] if env_file is None else ["--env", env_file]
    if restarts is not None:
        variable, first = restarts
        options += ["--restarts", variable, "--first", str(first)]
    module = ["-P", "-m", "sweeper.worker.main"]
    return [python or sys.executable, *module, *options, folder, token]
