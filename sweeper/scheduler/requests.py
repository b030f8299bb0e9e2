"""What users have asked of a launcher: to pause, to end, to have more or fewer jobs at once, to go
on with another plan. All of it is in the store, so that the next launcher knows it too."""

from sweeper.model.request import Asked, Pause
from sweeper.scheduler.context import Context
from sweeper.storage import sweep_requests

__all__ = ["Requests"]

_NAMES = ("pause", "parallel", "stop", "plan", "cancel")


class Requests:
    """The requests to a launcher, as of the last look. `stop`: somebody wants it to end;
    `replanned`: there is another plan; `parallel`: so many jobs at once are asked for;
    `cancel`: somebody has cancelled the whole sweep."""

    def __init__(self, context: Context) -> None:
        self._store, self._sweep = context.store, context.sweep
        self._layout = context.layout
        self._stamps: dict[str, int] = {}
        self.stop: Asked | None = None
        self.cancel: Asked | None = None
        self.pause: Pause | None = None
        self.parallel: int | None = None
        self.replanned = False

    @property
    def held(self) -> str | None:
        """Why nothing new is started, for people; None where nobody wants that."""
        return None if self.pause is None else self.pause.told(self._sweep)

    def look(self) -> None:
        """Read what has changed since the last look. Raises `StoreError`."""
        names = {self._layout.request(name): name for name in _NAMES}
        listed = self._store.list(self._layout.launcher)
        stamps = {names[entry.path]: entry.stamp for entry in listed if entry.path in names}
        if stamps == self._stamps:
            return
        place = self._store, self._sweep
        self.pause = sweep_requests.asked_pause(*place) if "pause" in stamps else None
        self.parallel = sweep_requests.asked_parallel(*place) if "parallel" in stamps else None
        self.stop = sweep_requests.asked_stop(*place) if "stop" in stamps else None
        self.cancel = sweep_requests.asked_cancel(*place) if "cancel" in stamps else None
        self.replanned = "plan" in stamps
        self._stamps = stamps
