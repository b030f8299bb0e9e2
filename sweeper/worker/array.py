"""Runs one element of a job array: `python -m sweeper.worker.array <root> <table> ARGUMENT...`
executes the arguments, followed by the token at the element's index in `table`."""

# If the first argument is an option, this Python interpreter executes the arguments. SWEEPER_INDEX
# holds the name of the variable that contains the index (earlier launchers: the variable whose name
# ends with `_ARRAY_INDEX`). This command line must never change, because the launcher's version may
# differ from the image's.

import os
import sys

from sweeper.errors import SweeperError, UsageError
from sweeper.store.documents import read_as
from sweeper.store.opening import open_store
from sweeper.sweep.job import read_tokens
from sweeper.worker.claim import with_retries


def main(arguments: list[str]) -> int:
    """Execute the job of this array element in place of this process. Return 1 if that fails."""
    root, table, *command = arguments
    try:
        store = open_store(root)
        tokens = with_retries(lambda: read_as(store, table, read_tokens))
        index = os.environ.get(os.environ.get("SWEEPER_INDEX", "")) or next(
            (v for k, v in os.environ.items() if k.endswith("_ARRAY_INDEX")), ""
        )
        if not index.isdecimal() or int(index) >= len(tokens):
            raise UsageError(
                f"the job's index in its array is {index!r}, but {table} has {len(tokens)} jobs"
            )
        command = [sys.executable, *command] if command[0].startswith("-") else command
        os.execvp(command[0], [*command, tokens[int(index)]])
    except (SweeperError, OSError) as error:
        print(f"sweeper: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
