"""The JSON documents that sweeper keeps in a store: one object, with the version of its shape."""

import json
import time
from typing import Any

from sweeper.errors import StoreError
from sweeper.store import Store

__all__ = ["SCHEMA", "encode", "read_json", "timestamp"]

SCHEMA = 1
"""The version of every document that this sweeper writes, and the newest that it reads."""


def encode(document: dict[str, Any]) -> bytes:
    """A document as it is stored: one line of JSON."""
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def read_json(store: Store, path: str) -> dict[str, Any]:
    """A document of ours. Raises `NotFound`, or `StoreError` when it is damaged or newer."""
    try:
        document: Any = json.loads(store.read(path))
    except ValueError as error:
        raise StoreError(f"{store.root}/{path}: damaged ({error})") from error
    if not isinstance(document, dict):
        raise StoreError(f"{store.root}/{path}: damaged (not a JSON object)")
    if document.get("schema", 0) > SCHEMA:  # pyright: ignore[reportUnknownMemberType]
        raise StoreError(f"{store.root}/{path}: written by a newer sweeper; upgrade to read it")
    return document  # pyright: ignore[reportUnknownVariableType]


def timestamp() -> str:
    """Now, in UTC, as every document of ours has it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
