"""The description of the tmux backend. The backend's other modules are loaded only when they are
used."""

from collections.abc import Iterable, Mapping

from sweeper.backends.base import Backend, BackendType, Check

__all__ = ["BACKEND"]


def _open(sweep: str, folder: str, options: Mapping[str, object]) -> Backend:
    from sweeper.backends.tmux.backend import open_backend

    return open_backend(sweep, folder, options)


def _checks(options: Mapping[str, object]) -> Iterable[Check]:
    from sweeper.backends.gpu_room import checks

    return [Check("tmux", True, _version), *checks(options)]


def _version() -> str:
    import shutil
    import subprocess

    from sweeper.backends.tmux.server import TmuxServer, socket_name

    if shutil.which("tmux") is None:
        raise LookupError("not found: `apt-get install tmux`, or use `--backend local`")
    TmuxServer().check()
    answer = subprocess.run(["tmux", "-V"], capture_output=True, text=True, timeout=10, check=True)
    return f"{answer.stdout.strip()}, socket {socket_name()!r}"


BACKEND = BackendType(
    "tmux", "A window of a tmux server for each run.", _open, checks=_checks, pins_gpus=True
)
