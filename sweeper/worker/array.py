"""Turns a child of an array job into the job that it stands for.

    python -m sweeper.worker.array <root> <table> ARGUMENT...

It executes the arguments (by this interpreter, where they begin with an option), followed by the
token that `table` (a file below `root`, which may be a store elsewhere) has at this child's index.
The backend says the index in the variable that is named by SWEEPER_INDEX; an earlier launcher does
not say by which, and its name ends with `_ARRAY_INDEX`. This command line must never change: the
launcher's version need not be the image's.
"""

import os
import sys

from sweeper.errors import SweeperError, UsageError
from sweeper.model.job import read_tokens
from sweeper.storage.documents import read_as
from sweeper.storage.opening import open_store
from sweeper.worker.claim import with_retries

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Execute the child's job. Returns only if something is wrong."""
    root, table, *command = arguments
    try:
        store = open_store(root)
        tokens = with_retries(lambda: read_as(store, table, read_tokens))
        index = os.environ.get(os.environ.get("SWEEPER_INDEX", "")) or next(
            (v for k, v in os.environ.items() if k.endswith("_ARRAY_INDEX")), ""
        )
        if not index.isdecimal() or int(index) >= len(tokens):
            raise UsageError(f"the index is {index!r}, of {len(tokens)} jobs")
        command = [sys.executable, *command] if command[0].startswith("-") else command
        os.execvp(command[0], [*command, tokens[int(index)]])
    except (SweeperError, OSError) as error:
        print(f"sweeper: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
