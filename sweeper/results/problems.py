"""Collects messages about unreadable data, so that other data can be shown."""

from sweeper.errors import NotFound, StoreError
from sweeper.terminal import warn

_MOST_TOLD = 20

_MOST_UNREAD = 5
"""After this many unreadable files, a remote store counts as unreachable, because each further file
would take as long to fail."""


class Problems(list[str]):
    """Messages about unreadable data. `unread` counts the messages about whole files or sweeps: if
    there are any, the output is incomplete. Other messages are warnings, for example about skipped
    lines."""

    def __init__(self) -> None:
        super().__init__()
        self.unread = 0

    def tell(self, line: str) -> None:
        """Add a line."""
        self.append(line)

    def tell_once(self, line: str) -> None:
        """Add a line, if it was not added before."""
        if line not in self:
            self.append(line)

    def unreadable(self, error: StoreError | NotFound) -> None:
        """Add an error about a whole file or sweep. If there are at least `_MOST_UNREAD` errors and
        this one is about a remote store, also raise it."""
        line = str(error)
        if line not in self:
            self.append(line)
            self.unread += 1
        if self.unread >= _MOST_UNREAD and "://" in line.partition(" ")[0]:
            raise error


def tell_problems(problems: Problems, *, listed: bool = False) -> int:
    """Print the problems on standard error; print nothing if they are already `listed` elsewhere.
    Return the exit code: 0 if no file or sweep was unreadable."""
    if not listed:
        for problem in problems[:_MOST_TOLD]:
            warn(problem)
        if len(problems) > _MOST_TOLD:
            warn(f"... and {len(problems) - _MOST_TOLD} more like these")
    return StoreError.exit_code if problems.unread else 0
