"""A private tmux server for measurements."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["own_tmux"]

_NAMES = ("TMUX_TMPDIR", "TMUX", "SWEEPER_TMUX_SOCKET")


@contextmanager
def own_tmux() -> Iterator[Path]:
    """Make tmux keep its sockets in a new folder, away from the user's servers, and yield this
    folder. Afterwards, end all servers there, and remove the folder with the sockets that they
    leave."""
    before = {name: os.environ.pop(name) for name in _NAMES if name in os.environ}
    # A socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="swt-", ignore_cleanup_errors=True) as folder:
        os.environ["TMUX_TMPDIR"] = folder
        try:
            yield Path(folder)
        finally:
            for socket in Path(folder).glob("tmux-*/*"):
                command = ["tmux", "-S", str(socket), "kill-server"]
                subprocess.run(command, capture_output=True, check=False)
            del os.environ["TMUX_TMPDIR"]
            os.environ.update(before)
