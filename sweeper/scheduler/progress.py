"""How a sweep is doing: as values, in a line; on a terminal, with a bar."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple, TextIO

from sweeper.labels import LOWERED
from sweeper.model.states import OPEN, State
from sweeper.sanitize import raw, sanitize

__all__ = ["Summary", "exit_code", "line", "printer", "showing_progress"]

_TOLD = (State.RUNNING, State.SUBMITTED, State.FAILED, State.PREEMPTED, State.LOST, State.CANCELLED)

_OVER = (State.SUCCEEDED, State.FAILED, State.CANCELLED)


class Summary(NamedTuple):
    """How a sweep stands: runs by state, and how many of them the launcher will still start.

    `unreachable` says what does not answer; `held` why nothing new is started any more, and
    `held_back` how many runs that leaves to be started by another launch; `limit` how many jobs
    there may be at once, where that is less than `max_parallel`, and `limit_by` why (see
    `labels.LOWERED`); `alarms` is what is to be told of alarms, a line each. `again`: of those to
    start, by the state that they are in, the runs that were started before.
    """

    counts: Counter[State]
    to_start: int
    unreachable: str | None
    held: str | None = None
    limit: int | None = None
    held_back: int = 0
    alarms: tuple[str, ...] = ()
    limit_by: str = "service"
    again: Mapping[State, int] = MappingProxyType({})

    @property
    def open(self) -> int:
        """Runs that have a job."""
        return sum(self.counts[state] for state in OPEN)

    @property
    def finished(self) -> bool:
        """Nothing runs and nothing is left to start."""
        return self.open == 0 and self.to_start == 0


def line(summary: Summary) -> str:
    """`12:01:03  7/18 succeeded, 4 running, 1 failed, 6 to start`."""
    return f"{time.strftime('%H:%M:%S')}  {_sentence(summary)}"


def exit_code(summary: Summary) -> int:
    """0 when all runs succeeded, 4 when some are still to end or, held back, to begin; 3 otherwise,
    which is to say when all is over and some have failed. `sweeper status` says the same."""
    if not summary.finished or summary.held_back:
        return 4
    return 0 if summary.counts[State.SUCCEEDED] == summary.counts.total() else 3


def printer(stream: TextIO) -> Callable[[Summary], None]:
    """A function that prints a line for a summary, and once why nothing more is started, and each
    alarm."""
    said: set[str] = set()

    def tell(summary: Summary) -> None:
        print(sanitize(line(summary)), file=stream, flush=True)
        for text in _news(summary, said):
            print(text, file=stream, flush=True)

    return tell


@contextmanager
def showing_progress() -> Generator[Callable[[Summary], None]]:
    """A function that shows a summary: moves a bar on a terminal, prints a line elsewhere."""
    if not sys.stderr.isatty():
        yield printer(sys.stderr)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    # A reason is text, and no markup.
    columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=raw(sys.stderr))) as bar:
        task = bar.add_task("starting")
        said: set[str] = set()

        def show(summary: Summary) -> None:
            bar.update(
                task,
                total=summary.counts.total(),
                completed=sum(summary.counts[s] - summary.again.get(s, 0) for s in _OVER),
                description=sanitize(_sentence(summary)),
            )
            for text in _news(summary, said):
                bar.console.print(text, markup=False, highlight=False)

        yield show


def _news(summary: Summary, said: set[str]) -> list[str]:
    """What is to be told once, and was not."""
    lines = [*([f"held: {summary.held}"] if summary.held is not None else []), *summary.alarms]
    lines = map(sanitize, lines)
    fresh = [text for text in dict.fromkeys(lines) if text not in said]
    said.update(fresh)
    return fresh


def _sentence(summary: Summary) -> str:
    """Each run is counted once: as over, at work, to be started, or to be started again."""
    counts = summary.counts
    parts = [f"{counts[State.SUCCEEDED]}/{counts.total()} succeeded"]
    again = summary.again
    left = {state: counts[state] - again.get(state, 0) for state in _TOLD}
    parts += [f"{number} {state.value}" for state, number in left.items() if number]
    if fresh := summary.to_start - sum(again.values()):
        parts.append(f"{fresh} to start")
    if again:
        parts.append(f"{sum(again.values())} to start again")
    if summary.limit is not None:
        parts.append(f"at most {summary.limit} at once: {LOWERED[summary.limit_by]}")
    if summary.unreachable:
        parts.append(f"waiting: {summary.unreachable}")
    return ", ".join(parts)
