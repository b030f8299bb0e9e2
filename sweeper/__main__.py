"""Runs the command line: `python -m sweeper` is `sweeper`."""

import sys

from sweeper.cli import main

if __name__ == "__main__":
    sys.exit(main())
