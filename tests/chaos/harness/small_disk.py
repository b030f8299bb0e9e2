"""A real file system with little room, to be filled, freed, and made read-only."""

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness.real import until
from sweeper.common.atomic import TEMPORARY

__all__ = ["SmallDisk", "can_mount", "small_disk"]

_OPTIONS = {"bytes": "size=512k", "inodes": "size=16m,nr_inodes=400"}


class SmallDisk:
    """Mounted at `folder`; `lacks` is the scarce resource: "bytes" or "inodes". `cut`: files that
    were being written when it became read-only, which their writers cannot remove."""

    def __init__(self, folder: Path, lacks: str) -> None:
        self.folder = folder
        self.cut: set[Path] = set()
        self._lacks = lacks
        self._number = 0

    def fill(self) -> None:
        """Fill the disk, also with the room that is freed when a file that is being written
        replaces another."""
        until(lambda: not self._unfinished() and not self._take(), why="the disk is never full")

    def _take(self) -> bool:
        """Take the free room. Returns whether there was any."""
        filler, taken = self.folder / ".filler", False
        with suppress(OSError):
            if self._lacks == "bytes":
                with filler.open("ab", buffering=0) as file:
                    while True:
                        taken |= bool(file.write(bytes(1024)))
            filler.mkdir(exist_ok=True)
            while True:
                (filler / str(self._number)).touch(exist_ok=False)
                self._number += 1
                taken = True
        return taken

    def _unfinished(self) -> set[Path]:
        """Return files that are being written."""
        tree = os.walk(self.folder)
        return {
            Path(folder, name)
            for folder, _, names in tree
            for name in names
            if name.startswith(TEMPORARY)
        }

    def free(self) -> None:
        """Make room again."""
        shutil.rmtree(self.folder / ".filler", ignore_errors=True)
        with suppress(FileNotFoundError, IsADirectoryError):
            (self.folder / ".filler").unlink()

    @contextmanager
    def read_only(self) -> Generator[None]:
        """Make it read-only during the block, for access by its path: as after the kernel's
        remount, which ignores files that are open for writing."""
        place = str(self.folder)
        for words in (["--bind", place, place], ["-o", "remount,ro,bind", place]):
            error = _mount(*words)
            assert error.returncode == 0, error.stderr
        self.cut |= self._unfinished()
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", place], check=True)


def can_mount(folder: Path) -> bool:
    """Return whether this process may mount, as root usually may."""
    place = folder / "mount"
    place.mkdir()
    mounted = shutil.which("mount") and not _mount("-t", "tmpfs", "none", str(place)).returncode
    if mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)
    return bool(mounted)


@contextmanager
def small_disk(folder: Path, lacks: str = "bytes") -> Generator[SmallDisk]:
    """Yield a small disk mounted at `folder`. Skips if nothing can be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.which("mount") is None:
        pytest.skip("there is no mount")
    error = _mount("-t", "tmpfs", "-o", _OPTIONS[lacks], "none", str(folder))
    if error.returncode:
        pytest.skip("small file systems can be mounted by root only")
    try:
        yield SmallDisk(folder, lacks)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _mount(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
