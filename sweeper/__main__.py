"""Runs the command line: `python -m sweeper` is the same as `sweeper`."""

import gc
import os
import sys
from contextlib import suppress
from importlib import import_module

_GC_THRESHOLD = 50_000
"""Allocations between garbage collections. Python's default threshold would cause dozens of
collections while modules are imported, and these collections would free nothing."""

_AT_EXIT = {"atexit", "threading"}
"""Modules that let code run when Python exits. If one is loaded, Python must exit normally."""


def main() -> int:
    """Run the command line and return the exit code. `sweeper plan` first starts the interpreter
    that checks the recipe, and imports other modules while the interpreter starts."""
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
    # At exit Python searches all objects for garbage, which takes milliseconds. Python skips frozen
    # objects, but DuckDB would report its frozen objects as leaked.
    if "duckdb" not in sys.modules:
        gc.freeze()
    return code


def _leave(code: int) -> None:
    """Flush the output and end the process at once, without freeing every object. Return only if
    flushing fails."""
    with suppress(OSError, ValueError):
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None: was closed at the start.
            stream.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
