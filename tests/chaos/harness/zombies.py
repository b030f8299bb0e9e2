"""Counts the ended but unreaped children of a process, repeatedly."""

import threading
from types import TracebackType
from typing import Self

import psutil

_SECONDS = 0.02


class Sampled:
    """Counts the zombies among the children of `pid` until the block ends. `most` is the largest of
    the `looks` counts, `last` the last one while the process existed."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.looks = self.most = self.last = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_SECONDS):
            try:
                children = self._process.children()
            except psutil.Error:
                return
            self.last = sum(map(_is_zombie, children))
            self.most = max(self.most, self.last)
            self.looks += 1


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
