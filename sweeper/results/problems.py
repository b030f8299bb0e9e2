"""Collects messages about unreadable data, so that other data can be shown."""

from sweeper.errors import NotFound, StoreError
from sweeper.terminal import warn

_MOST_TOLD = 20

_MOST_UNREAD = 5
"""After this many unreadable files, a remote store counts as unreachable, because each further file
would take as long to fail."""


class Problems(list[str]):
    """Messages about unreadable data. `unread` counts the messages about whole files or sweeps,
    without which the output is incomplete. The other messages are warnings, for example about
    skipped lines."""

    def __init__(self) -> None:
        super().__init__()
        self.unread = 0

    def tell(self, line: str) -> None:
        """Add a line."""
        self.append(line)

    def tell_once(self, line: str) -> None:
        """Add a line unless it was added before."""
        if line not in self:
            self.append(line)

    def unreadable(self, error: StoreError | NotFound) -> None:
        """Add an error about a whole file or sweep. From the `_MOST_UNREAD`th error on, also raise
        errors about remote stores."""
        line = str(error)
        if line not in self:
            self.append(line)
            self.unread += 1
        if self.unread >= _MOST_UNREAD and "://" in line.partition(" ")[0]:
            raise error


def tell_problems(problems: Problems, *, listed: bool = False) -> int:
    """Print the problems on standard error, unless they are `listed` elsewhere. Return the exit
    code, which is not 0 if the output is incomplete."""
    if not listed:
        for problem in problems[:_MOST_TOLD]:
            warn(problem)
        if len(problems) > _MOST_TOLD:
            warn(f"... and {len(problems) - _MOST_TOLD} more like these")
    return StoreError.exit_code if problems.unread else 0
