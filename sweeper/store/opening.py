"""Opens the store at a root: a folder, or the URL of a remote store."""

import os

from sweeper.store.base import Store
from sweeper.store.local import LocalStore

DEFAULT_ROOT = "sweeps"


def default_root() -> str:
    """Return the default root of sweeps: $SWEEPER_ROOT, or else `sweeps` in the current folder."""
    return os.environ.get("SWEEPER_ROOT") or DEFAULT_ROOT


def open_store(root: str) -> Store:
    """Return the store at `root`: a folder, its `file://` URL, or the URL of a remote store, such
    as `s3://bucket/prefix`.

    Raises `StoreError` for an unknown kind of store.
    """
    scheme, separator, rest = root.partition("://")
    if not separator:
        return LocalStore(os.path.expanduser(root))
    if scheme == "file":
        return LocalStore(rest)
    # Imported late, since workers with a local store must not load it.
    from sweeper.store.remote import open_remote

    return open_remote(root)
