"""Reads what users ask of a launcher: to pause, to end, to run more or fewer jobs at once, or to
continue with another plan. The requests are in the store, so that the next launcher reads them
too."""

from sweeper.scheduler.context import Context
from sweeper.sweep import sweep_requests
from sweeper.sweep.request import Asked, Pause

_NAMES = ("pause", "parallel", "stop", "plan", "cancel")


class Requests:
    """The requests to a launcher, as of the last look. `stop`: a user wants it to end.
    `replanned`: there is another plan. `parallel`: the requested number of jobs at once.
    `cancel`: a user has cancelled the whole sweep."""

    def __init__(self, context: Context) -> None:
        self._folder = context.folder
        self._stamps: dict[str, int] = {}
        self.stop: Asked | None = None
        self.cancel: Asked | None = None
        self.pause: Pause | None = None
        self.parallel: int | None = None
        self.replanned = False

    @property
    def held(self) -> str | None:
        """Why a user's request keeps anything new from starting, for people; None if there is no
        such request."""
        return None if self.pause is None else self.pause.told(self._folder.name)

    def look(self) -> None:
        """Reads what has changed since the last look. Raises `StoreError`."""
        names = {self._folder.request(name): name for name in _NAMES}
        listed = self._folder.store.list(self._folder.launcher)
        stamps = {names[entry.path]: entry.stamp for entry in listed if entry.path in names}
        if stamps == self._stamps:
            return
        self.pause = sweep_requests.asked_pause(self._folder) if "pause" in stamps else None
        self.parallel = (
            sweep_requests.asked_parallel(self._folder) if "parallel" in stamps else None
        )
        self.stop = sweep_requests.asked_stop(self._folder) if "stop" in stamps else None
        self.cancel = sweep_requests.asked_cancel(self._folder) if "cancel" in stamps else None
        self.replanned = "plan" in stamps
        self._stamps = stamps
