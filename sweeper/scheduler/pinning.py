"""Keeps checkpoints that later runs start from: before the first of these runs starts, the
service is asked not to delete a checkpoint that would expire."""

from typing import Literal

from sweeper.errors import SweeperError

_SCHEME = "tinker://"

Pinned = Literal["kept", "gone", "unknown"]


class Pins:
    """The checkpoints that the service was asked to keep. `service` is its name, and `env_file`
    has the environment of the launch. A service that cannot be asked is not asked again."""

    def __init__(self, service: str, env_file: str | None) -> None:
        self._name, self._env_file = service, env_file
        self._found: dict[str, Pinned] = {}
        self._away = False

    def keep(self, path: str) -> Pinned:
        """Asks the service to keep a checkpoint for good. `gone`: the service has no such
        checkpoint. `unknown`: the service cannot be asked, or the path belongs to no service."""
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
