"""Checks that sweeps can be stored in a root, before a launch writes anything there."""

import os
from contextlib import suppress

from sweeper.common.atomic import nearest_folder, try_to_write
from sweeper.errors import AlreadyExists, StoreError
from sweeper.store.base import Store

_IGNORE = "# Made by sweeper: results are not for git. Remove this file to commit them.\n*\n"


def check_root(store: Store) -> None:
    """Raise `StoreError` if the root is a folder that cannot be written to or created. The check
    leaves no file behind. A remote store is not checked: it reports errors when it is used."""
    root = store.local_path("")
    if root is None:
        return
    folder = nearest_folder(root)
    try:
        try_to_write(folder)
    except OSError as error:
        fault = "cannot be written to" if folder == root else "cannot be created"
        where = "" if folder == root else f" in {folder}"
        raise StoreError(f"the root {root} {fault}{where}: {error.strerror}") from error


def make_root(store: Store) -> None:
    """Make the folder of a local root if it does not exist, with a `.gitignore` so that `git add
    -A` does not add results. An existing folder is left as it is. Raises `StoreError`."""
    root = (store.local_path("") or "").rstrip("/")
    if not root or os.path.lexists(root):
        return
    above = os.path.dirname(root)
    temporary = os.path.join(above, f".tmp-{os.getpid()}-{os.urandom(8).hex()}")
    try:
        os.makedirs(above, exist_ok=True)
        os.mkdir(temporary)
        with open(os.path.join(temporary, ".gitignore"), "w", encoding="ascii") as file:
            file.write(_IGNORE)
        with suppress(FileExistsError, OSError):  # Another launch may have been first.
            os.rename(temporary, root)
    except OSError as error:
        raise StoreError(f"cannot create the root {root}: {error.strerror}") from error
    finally:
        import shutil  # imported late, since it loads three compressors

        shutil.rmtree(temporary, ignore_errors=True)


def probe(store: Store, folder: str) -> None:
    """Check the operations that every sweep needs, with a file in `folder`: create it exclusively,
    list it, read it. Removes the file. Raises `StoreError` if an operation does not work."""
    path = f"{folder}/.probe-{os.urandom(8).hex()}"

    def create(number: int) -> bool:
        try:
            store.create(path, b"%d" % number)
        except AlreadyExists:
            return False
        return True

    from concurrent.futures import ThreadPoolExecutor  # imported late: `plan` does not need it

    try:
        # The result does not matter: if the reply to a first request is lost, the client repeats
        # the request, which then finds the file.
        create(0)
        with ThreadPoolExecutor(4) as pool:
            repeated = list(pool.map(create, range(1, 5)))
        listed, content = path in set(store.names(folder)), store.read(path)
    finally:
        with suppress(StoreError):
            store.remove([path])
    if any(repeated) or content != b"0":
        raise StoreError(
            f"{store.root} accepts a second create of the same file, so two workers could start "
            "the same run: use another store"
        )
    if not listed:
        raise StoreError(
            f"{store.root}: a new file is missing from the listing of its folder, so a sweep "
            "would not see its own events: use another store"
        )
