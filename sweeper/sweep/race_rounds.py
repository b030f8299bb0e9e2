"""The recorded rounds of a race for seeds: which runs each of them adds, or why the race ended."""

from typing import Annotated, Literal, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import SCHEMA, AtLeast, Default, Key, Time

Ended = Literal["clear", "spent", "identical"]


class Round(NamedTuple):
    """A decision of a race, which is final: the `runs` (ids) that bring their cells to `seeds`
    seeds each; or, without runs, why it `ended`: one cell is clearly the best, all seeds are used,
    or the runs of each cell are identical. `judged` identifies what was decided (cells, metric,
    most seeds), so that the race continues if the grid changes."""

    seeds: Annotated[int, AtLeast(1)]
    runs: Annotated[tuple[str, ...], Default(())]
    ended: Ended | None
    judged: Annotated[str, Key("of"), Default("")]
    time: Time

    def document(self) -> dict[str, object]:
        """Return the stored form."""
        return {"schema": SCHEMA, **codec.written(self)}


def read_round(document: object, place: str) -> Round:
    """Read a round from the file `place`. Raises `StoreError`."""
    return codec.read(Round, document, place)
