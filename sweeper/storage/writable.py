"""Finds out whether sweeps can be kept in a root, before anything is written there."""

from sweeper.atomic import nearest_folder, try_to_write
from sweeper.errors import StoreError
from sweeper.storage.base import Store

__all__ = ["check_root"]


def check_root(store: Store) -> None:
    """Raise `StoreError` if the root is a folder that cannot be written to or made. Nothing is left
    behind. A remote store says so itself when it is used."""
    root = store.local_path("")
    if root is None:
        return
    folder = nearest_folder(root)
    try:
        try_to_write(folder)
    except OSError as error:
        what = "cannot be written to" if folder == root else "cannot be made"
        where = "" if folder == root else f" in {folder}"
        raise StoreError(f"the root {root} {what}{where}: {error.strerror}") from error
