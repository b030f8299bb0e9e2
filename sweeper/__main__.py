"""Runs the command line: `python -m sweeper` is `sweeper`."""

import gc
import sys
from importlib import import_module

_GC_THRESHOLD = 50_000
"""Allocations between garbage collections. Python's own threshold is so low that it collects
dozens of times while modules load, which leaves no garbage."""


def main() -> int:
    """Run the command line. The interpreter that checks a plan's recipe takes longest, so it starts
    before other modules are loaded; the plan's output module is loaded while it answers."""
    gc.set_threshold(_GC_THRESHOLD)
    if sys.argv[1:2] != ["plan"]:
        return _run()
    from sweeper.recipe.probe import ahead

    with ahead(sys.argv[2:], meanwhile=lambda: import_module("sweeper.commands.plan_text")):
        return _run()


def _run() -> int:
    from sweeper import cli

    try:
        return cli.main()
    finally:
        # At the end Python would search all objects for garbage, which takes milliseconds.
        # Otherwise DuckDB reports its objects as leaked.
        if "duckdb" not in sys.modules:
            gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
