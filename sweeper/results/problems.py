"""Collects what could not be read, in lines, while the rest is shown."""

from sweeper.errors import NotFound, StoreError
from sweeper.terminal import warn

_MOST_TOLD = 20

_MOST_UNREAD = 5
"""After so many files in a row that cannot be read, a remote store counts as out of reach: each
further one would take as long to fail."""


class Problems(list[str]):
    """Lines about what could not be read. `unread` counts those about files or sweeps that cannot
    be read at all, so that what is shown is not complete; others are about lines that were
    skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.unread = 0

    def tell(self, line: str) -> None:
        """Add a line."""
        self.append(line)

    def tell_once(self, line: str) -> None:
        """Add a line unless it is there already."""
        if line not in self:
            self.append(line)

    def unreadable(self, error: StoreError | NotFound) -> None:
        """Add what could not be read. Raises it again for a remote store that does not seem to
        answer at all."""
        line = str(error)
        if line not in self:
            self.append(line)
            self.unread += 1
        if self.unread >= _MOST_UNREAD and "://" in line.partition(" ")[0]:
            raise error


def tell_problems(problems: Problems, *, listed: bool = False) -> int:
    """Print what could not be read on standard error, unless it is `listed` elsewhere. Returns the
    exit code, which is not 0 if what is shown is not complete."""
    if not listed:
        for problem in problems[:_MOST_TOLD]:
            warn(problem)
        if len(problems) > _MOST_TOLD:
            warn(f"... and {len(problems) - _MOST_TOLD} more like these")
    return StoreError.exit_code if problems.unread else 0
