"""Do many requests to a store at once, as far as it takes them (`Store.at_once`)."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from sweeper.store.base import Store

S = TypeVar("S")
T = TypeVar("T")

AT_ONCE = 32
"""The most requests at once to a remote store, as many as its client has connections."""


def each(store: "Store", action: "Callable[[S], T]", over: "Iterable[S]") -> "list[T]":
    """Return the results of `action` for each element, in order. On a remote store several are at
    work at once: one that is slow delays only itself. All are done before an error of one is
    raised."""
    chosen = list(over)
    if store.at_once < 2 or len(chosen) < 2:
        return [action(one) for one in chosen]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(store.at_once, len(chosen))) as pool:
        return list(pool.map(action, chosen))
