"""Signals that interrupt a block as Ctrl-C does."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

_Handler = Callable[[int, FrameType | None], object] | int | None
"""A signal handler."""


class Interrupts:
    """A context manager in which the first SIGINT, SIGTERM or SIGHUP raises `KeyboardInterrupt`.
    Later signals, and all signals after `hold`, are delayed. They raise `KeyboardInterrupt` at the
    end of the block, unless the block raises an error."""

    def __init__(self) -> None:
        self._before: dict[int, _Handler] = {}
        self._held = self._came = False

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                # A signal that is ignored, for example under nohup, stays ignored.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._on)
        return self

    def hold(self) -> None:
        """Delay signals until the end of the block."""
        self._held = True

    def _on(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._held:
            self._came = True
        else:
            self._held = True
            raise KeyboardInterrupt

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._came and kind is None:
            raise KeyboardInterrupt
