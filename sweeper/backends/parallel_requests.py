"""Sends one request per job for many jobs, several in parallel."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sweeper.errors import EnvironmentFailure, Unreachable

_ABREAST = 8
T = TypeVar("T")


def for_each(
    things: Sequence[T], deed: Callable[[T], None], of_one: type[EnvironmentFailure]
) -> None:
    """Call `deed` with each of `things`, several in parallel. `of_one` is the class of failures
    that concern a single thing. After any other failure, no further call is started. Raises one of
    the failures, a permanent one if there is any."""
    failures: list[EnvironmentFailure] = []

    def attempt(thing: T) -> None:
        if all(isinstance(failure, of_one) for failure in failures):
            try:
                deed(thing)
            except EnvironmentFailure as error:
                failures.append(error)

    if things:
        with ThreadPoolExecutor(min(_ABREAST, len(things))) as pool:
            list(pool.map(attempt, things))
    for failure in sorted(failures, key=lambda failure: isinstance(failure, Unreachable)):
        raise failure
