"""How sweeper starts its own programs: with this interpreter, and nothing of the current folder on
the module path, where a `json.py` or a `sweeper/` of the user's may lie."""

import sys

__all__ = ["self_command", "worker_command"]


def self_command(*arguments: str) -> list[str]:
    """The argv of `sweeper ARGUMENTS`."""
    return [sys.executable, "-P", "-m", "sweeper", *arguments]


def worker_command(folder: str, token: str, env_file: str | None = None) -> list[str]:
    """The argv of the worker for one attempt of a run of the sweep at `folder`. Backends find
    their jobs by its last two elements. `env_file`: where the environment lies without which the
    store cannot be reached."""
    options = [] if env_file is None else ["--env", env_file]
    return [sys.executable, "-P", "-m", "sweeper.worker", *options, folder, token]
