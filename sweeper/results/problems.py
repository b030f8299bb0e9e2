"""What could not be read, told in lines: of all that lies in a root the rest is shown."""

from sweeper.errors import NotFound, StoreError
from sweeper.terminal import warn

__all__ = ["Problems", "tell_problems"]

_MOST_TOLD = 20

_MOST_UNREAD = 5
"""Files of a store that is elsewhere which cannot be read, after which it does not answer: each of
those that follow would take the same time to say so."""


class Problems(list[str]):
    """Lines. `unread`: so many are of files or sweeps that could not be read, or are
    damaged as a whole, so that what is shown is not all there is; others tell of lines that were
    skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.unread = 0

    def tell(self, line: str) -> None:
        """Add a line."""
        self.append(line)

    def tell_once(self, line: str) -> None:
        """The same, where it may be found out several times."""
        if line not in self:
            self.append(line)

    def unreadable(self, error: StoreError | NotFound) -> None:
        """Add what could not be read. Raises it again for a store elsewhere that does not seem to
        answer at all."""
        line = str(error)
        if line not in self:
            self.append(line)
            self.unread += 1
        if self.unread >= _MOST_UNREAD and "://" in line.partition(" ")[0]:
            raise error


def tell_problems(problems: Problems, *, told: bool = False) -> int:
    """What could not be read, on standard error, unless that is `told` elsewhere. Gives the exit
    code: what is shown of a store that cannot all be read is not all there is."""
    if not told:
        for problem in problems[:_MOST_TOLD]:
            warn(problem)
        if len(problems) > _MOST_TOLD:
            warn(f"... and {len(problems) - _MOST_TOLD} more like these")
    return StoreError.exit_code if problems.unread else 0
