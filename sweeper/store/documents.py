"""The JSON documents that sweeper keeps in a store: one object, with the version of its shape."""

import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, cast

from sweeper.errors import StoreError
from sweeper.store.files import Store

__all__ = ["SCHEMA", "dotted", "encode", "read_json", "strict", "timestamp"]

SCHEMA = 1
"""The version of every document that this sweeper writes, and the newest that it reads."""


def encode(document: dict[str, Any]) -> bytes:
    """A document as it is stored: one line of JSON."""
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def read_json(store: Store, path: str) -> dict[str, Any]:
    """A document of ours. Raises `NotFound`, or `StoreError` when it is damaged or newer."""
    try:
        document: Any = json.loads(store.read(path))
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{store.root}/{path}: damaged ({error})") from error
    if not isinstance(document, dict):
        raise StoreError(f"{store.root}/{path}: damaged (not a JSON object)")
    schema = cast(dict[str, Any], document).get("schema", 0)
    if not isinstance(schema, int):
        raise StoreError(f"{store.root}/{path}: damaged (schema {schema!r})")
    if schema > SCHEMA:
        raise StoreError(f"{store.root}/{path}: written by a newer sweeper; upgrade to read it")
    return document  # pyright: ignore[reportUnknownVariableType]


def dotted(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a nested document by dotted keys; an empty mapping is a value."""
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{prefix}{key}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield f"{prefix}{key}", value


def strict(value: Any) -> Any:
    """A copy of a document that any JSON reader takes: numbers that are not finite, which JSON
    does not have, become their names ("NaN", "Infinity", "-Infinity"), keys become text."""
    if isinstance(value, Mapping):
        return {str(key): strict(inner) for key, inner in value.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [strict(inner) for inner in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def timestamp() -> str:
    """Now, in UTC, as every document of ours has it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
