"""Sends one request per job for many jobs, several in parallel."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sweeper.errors import EnvironmentFailure, Unreachable

_ABREAST = 8
T = TypeVar("T")


def for_each(
    items: Sequence[T], action: Callable[[T], None], item_failure: type[EnvironmentFailure]
) -> None:
    """Call `action` with each of `items`, several in parallel. An `item_failure` concerns only its
    item, so the other calls continue. After any other `EnvironmentFailure`, no further call is
    started. At the end, raise one of the exceptions, but an `Unreachable` only if there is no
    other."""
    failures: list[EnvironmentFailure] = []

    def attempt(item: T) -> None:
        if all(isinstance(failure, item_failure) for failure in failures):
            try:
                action(item)
            except EnvironmentFailure as error:
                failures.append(error)

    if items:
        with ThreadPoolExecutor(min(_ABREAST, len(items))) as pool:
            list(pool.map(attempt, items))
    for failure in sorted(failures, key=lambda failure: isinstance(failure, Unreachable)):
        raise failure
