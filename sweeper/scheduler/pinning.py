"""Keeps the checkpoints that runs go on from: the service is asked, before the first of these runs
starts, not to delete one that would expire."""

from typing import Literal

from sweeper.errors import SweeperError

__all__ = ["Pins"]

_SCHEME = "tinker://"

Pinned = Literal["kept", "gone", "unknown"]


class Pins:
    """What the service of a sweep was asked to keep. `service` is its name, `env_file` has the
    environment that the sweep was launched in. Who cannot be asked is not asked again."""

    def __init__(self, service: str, env_file: str | None) -> None:
        self._name, self._env_file = service, env_file
        self._found: dict[str, Pinned] = {}
        self._away = False

    def keep(self, path: str) -> Pinned:
        """Have a checkpoint kept for good. `gone`: the service has none there; `unknown`: it cannot
        be asked, or is no service's."""
        if not path.startswith(_SCHEME):
            return "unknown"
        if path not in self._found and not self._away:
            try:
                self._found[path] = self._ask(path)
            except SweeperError:
                self._away = True
        return self._found.get(path, "unknown")

    def _ask(self, path: str) -> Pinned:
        from sweeper.results import kept_checkpoints
        from sweeper.results.service_requests import of_service
        from sweeper.worker.job import read_environment

        service = of_service(self._name, read_environment(self._env_file))
        return (
            "kept"
            if kept_checkpoints.expire(service, kept_checkpoints.Kept(path, 0, None, None), None)
            else "gone"
        )
