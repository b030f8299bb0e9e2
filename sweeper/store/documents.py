"""Reads and writes JSON documents in a store. Each document is a JSON object with the version of
its schema."""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import TypeVar, cast, overload

from sweeper.common.codec import SCHEMA
from sweeper.common.json_values import decode
from sweeper.errors import Damaged, NotFound, StoreError
from sweeper.store.base import Store

T = TypeVar("T")


def encode(document: Mapping[str, object]) -> bytes:
    """Encode a document as it is stored: one line of JSON."""
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def read_json(store: Store, path: str) -> dict[str, object]:
    """Read a document written by sweeper. Raises `NotFound`, `Damaged`, or `StoreError` if a newer
    version wrote it."""
    return parse_json(store.read(path), place_of(store, path))


def parse_json(data: bytes, place: str) -> dict[str, object]:
    """Parse a document. `place` is its address, for messages. Raises `Damaged` or `StoreError`,
    like `read_json`."""
    try:
        document: object = decode(data)
    except ValueError as error:
        raise Damaged(f"{place}: damaged ({error})") from error
    if not isinstance(document, dict):
        raise Damaged(f"{place}: damaged (not a JSON object)")
    schema = cast(dict[str, object], document).get("schema", 0)
    if not isinstance(schema, int):
        raise Damaged(f"{place}: damaged (schema: not a number)")
    if schema > SCHEMA:
        raise StoreError(f"{place}: written by a newer sweeper; upgrade to read it")
    return document  # pyright: ignore[reportUnknownVariableType]


def read_as(store: Store, path: str, read: Callable[[object, str], T]) -> T:
    """Read a document with `read`, the reader of its type (see `sweeper.sweep`). Raises `NotFound`,
    or `StoreError` if the document is damaged, has unexpected fields, or is from a newer
    version."""
    return read(read_json(store, path), place_of(store, path))


def read_each(
    store: Store,
    readers: Mapping[str, Callable[[object, str], T]],
    cache: MutableMapping[str, T] | None = None,
    on_error: Callable[[StoreError], None] | None = None,
) -> list[T]:
    """Read documents that never change. `readers` maps each path to its reader. Missing and damaged
    documents are skipped; `on_error` gets the errors of the damaged ones. Documents in `cache` are
    not read again; documents that are read are added to `cache`."""
    cache = {} if cache is None else cache
    documents: list[T] = []
    for path, read in readers.items():
        document = cache.get(path)
        try:
            document = document or read_as(store, path, read)
        except NotFound:
            continue
        except StoreError as error:
            if on_error is not None:
                on_error(error)
            continue
        cache[path] = document
        documents.append(document)
    return documents


def place_of(store: Store, path: str) -> str:
    """Return the full address of a file in a store, for messages."""
    return f"{store.root}/{path}"


def dotted(document: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted key and the value of each leaf of a nested document. An empty mapping counts
    as a leaf."""
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{prefix}{key}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield f"{prefix}{key}", value


@overload
def strict(value: Mapping[str, object]) -> dict[str, object]: ...


@overload
def strict(value: object) -> object: ...


def strict(value: object) -> object:
    """Copy a document so that any JSON reader accepts it: numbers that are not finite become the
    strings "NaN", "Infinity" and "-Infinity", and keys become strings."""
    if isinstance(value, Mapping):
        table = cast(Mapping[object, object], value)
        return {str(key): strict(inner) for key, inner in table.items()}
    if isinstance(value, list | tuple):
        return [strict(inner) for inner in cast(Sequence[object], value)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def timestamp(seconds: float | None = None) -> str:
    """Format a time (`seconds` since 1970, by default now) in UTC, in the format that all documents
    use."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def seconds_since(text: str | None) -> float | None:
    """Return the seconds since a time in a document; None if `text` is None. Raises `ValueError` if
    the text is not a time."""
    if text is None:
        return None
    from datetime import datetime  # imported late, since most verbs compute no age

    return time.time() - datetime.fromisoformat(text).timestamp()
