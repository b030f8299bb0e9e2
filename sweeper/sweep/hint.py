"""Builds sweeper commands that users can copy into a shell."""

import os
from contextlib import suppress

from sweeper.store.opening import default_root


def hint(verb: str, *words: str, root: str | None = None) -> str:
    """Return the command `sweeper VERB WORDS`, quoted for a shell. Add `--root` unless `root` is
    the default."""
    import shlex  # imported late, since most commands need no hint

    where = [] if root is None or _is_default(root) else ["--root", root]
    return shlex.join(["sweeper", *verb.split(), *words, *where])


def _is_default(root: str) -> bool:
    default = default_root()
    if root == default or "://" in root + default:
        return root.rstrip("/") == default.rstrip("/")
    with suppress(OSError):  # The current folder was removed.
        return os.path.realpath(os.path.expanduser(root)) == os.path.realpath(
            os.path.expanduser(default)
        )
    return False
