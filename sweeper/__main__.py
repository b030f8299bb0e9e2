"""Runs the command line: `python -m sweeper` is `sweeper`."""

import gc
import os
import sys
from contextlib import suppress
from importlib import import_module

_GC_THRESHOLD = 50_000
"""Allocations between garbage collections. Python's own threshold is so low that it collects
dozens of times while modules load, which leaves no garbage."""

_AT_EXIT = {"atexit", "threading"}
"""Modules through which others ask Python to do something when it ends."""


def main() -> int:
    """Run the command line. `sweeper plan` waits longest for the interpreter that checks the
    recipe, so that interpreter is started first, and other modules are loaded meanwhile."""
    gc.set_threshold(_GC_THRESHOLD)
    if sys.argv[1:2] != ["plan"]:
        return _run()
    from sweeper.recipe.probe import ahead

    with ahead(sys.argv[2:], meanwhile=lambda: import_module("sweeper.commands.plan_text")):
        return _run()


def _run() -> int:
    from sweeper import cli

    code = cli.main()
    if not _AT_EXIT & sys.modules.keys():
        _leave(code)
    # At the end Python would search all objects for garbage, which takes milliseconds.
    # Otherwise DuckDB reports its objects as leaked.
    if "duckdb" not in sys.modules:
        gc.freeze()
    return code


def _leave(code: int) -> None:
    """End the process at once. Python would first free every object, which takes milliseconds.
    Return only if an output cannot be written: Python then reports the error when it ends."""
    with suppress(OSError, ValueError):
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None was closed from the start.
            stream.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
