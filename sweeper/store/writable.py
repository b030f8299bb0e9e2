"""Can sweeps be kept in a root? Found out before anything is written there."""

import errno
import os
import tempfile

from sweeper.atomic import TEMPORARY
from sweeper.errors import StoreError
from sweeper.store.files import Store

__all__ = ["check_root"]

_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)


def check_root(store: Store) -> None:
    """Raise `StoreError` where the root is a folder that cannot be written to, or that cannot be
    made. Nothing is left behind, and nothing is made. A store elsewhere answers for itself."""
    root = store.local_path("")
    if root is None:
        return
    folder = root
    while not os.path.lexists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    try:
        _try_to_write(folder)
    except OSError as error:
        what = "cannot be written to" if folder == root else "cannot be made"
        where = "" if folder == root else f" in {folder}"
        raise StoreError(f"the root {root} {what}{where}: {error.strerror}") from error


def _try_to_write(folder: str) -> None:
    """A file without a name, where the file system has those; else a folder, for an instant."""
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC))
        return
    except AttributeError:  # not Linux
        pass
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    os.rmdir(tempfile.mkdtemp(prefix=TEMPORARY, dir=folder))
