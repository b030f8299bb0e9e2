"""Opens the store at a root: a folder, or a URL of a store that is elsewhere."""

import os

from sweeper.store.base import Store
from sweeper.store.local import LocalStore

DEFAULT_ROOT = "sweeps"


def default_root() -> str:
    """Return where sweeps lie when nobody says otherwise: $SWEEPER_ROOT, else `sweeps` here."""
    return os.environ.get("SWEEPER_ROOT") or DEFAULT_ROOT


def open_store(root: str) -> Store:
    """Return the store at `root`: a folder, a `file://` URL of one, or a URL as
    `sweeper.store.remote` has them (`s3://bucket/prefix`).

    Raises `StoreError` for a kind of store that there is no code for.
    """
    scheme, separator, rest = root.partition("://")
    if not separator:
        return LocalStore(os.path.expanduser(root))
    if scheme == "file":
        return LocalStore(rest)
    from sweeper.store.remote import open_remote  # a worker with a local store must not load it

    return open_remote(root)
