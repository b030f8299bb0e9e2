"""Sends many requests to a store at once, as many as it accepts (`Store.at_once`)."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from sweeper.store.base import Store

S = TypeVar("S")
T = TypeVar("T")

AT_ONCE = 32
"""The most requests at once to a remote store, equal to the number of its client's connections."""


def each(store: "Store", action: "Callable[[S], T]", over: "Iterable[S]") -> "list[T]":
    """Return the results of `action` for each element, in order. A remote store gets several
    requests at once, so that a slow one delays only itself. All are finished before an error is
    raised."""
    chosen = list(over)
    if store.at_once < 2 or len(chosen) < 2:
        return [action(item) for item in chosen]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(store.at_once, len(chosen))) as pool:
        return list(pool.map(action, chosen))
