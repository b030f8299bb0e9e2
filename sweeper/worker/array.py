"""A child of an array job becomes the job that it stands for:

    python -m sweeper.worker.array <variable> <root> <table> ARGUMENT...

The arguments, and after them the token that `table` (a file below `root`, which may be a store
elsewhere) has under this child's index, are the command that it executes. The index is what the
backend says in `variable`.
"""

import os
import sys

from sweeper.errors import SweeperError, UsageError
from sweeper.model.job import read_tokens
from sweeper.store.documents import read_as
from sweeper.store.files import open_store
from sweeper.worker.claim import patiently

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Entry point. Does not return unless something is wrong."""
    variable, root, table, *command = arguments
    try:
        store = open_store(root)
        tokens = patiently(lambda: read_as(store, table, read_tokens))
        index = os.environ.get(variable, "")
        if not index.isdecimal() or int(index) >= len(tokens):
            raise UsageError(f"{variable} is {index!r}, of {len(tokens)} jobs")
        os.execvp(command[0], [*command, tokens[int(index)]])
    except (SweeperError, OSError) as error:
        print(f"sweeper: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
