"""Requests to the launcher of a sweep: files beside what it publishes, each replaced as a whole. A
launcher looks for them in every round, and the next one finds them too."""

import os

from sweeper.store.documents import encode, timestamp
from sweeper.sweep import plan_file
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.plan import Plan
from sweeper.sweep.request import Asked, Pause, read_asked, read_parallel, read_pause


def user() -> str:
    """Return who asks: the user of this process, and the machine."""
    import getpass  # reading requests has no use for it

    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        name = str(os.getuid())
    return f"{name}@{os.uname().nodename}"


def asked_now() -> Asked:
    """Return a request of this user's, made now."""
    return Asked(user(), timestamp())


def ask_pause(folder: SweepFolder, *, on: bool, runs: bool = False) -> None:
    """Ask that nothing new be started, or that it go on. Raises `StoreError`."""
    _ask(folder, "pause", asked_now().document(on=on, runs=runs))


def ask_parallel(folder: SweepFolder, most: int | None) -> None:
    """Ask for so many jobs at once; None: as many as the plan says. Raises `StoreError`."""
    _ask(folder, "parallel", asked_now().document(max_parallel=most))


def ask_stop(folder: SweepFolder) -> None:
    """Ask the launcher at work to end. A launch takes the request back. Raises `StoreError`."""
    _ask(folder, "stop", asked_now().document())


def ask_cancel(folder: SweepFolder, by: str | None = None) -> None:
    """Ask that nothing more be chosen of a sweep's stages, all of which is cancelled. A launch and
    a retry take the request back. Raises `StoreError`."""
    request = asked_now() if by is None else Asked(by, timestamp())
    _ask(folder, "cancel", request.document())


def propose_plan(folder: SweepFolder, document: dict[str, object]) -> None:
    """Give the launcher at work a plan to go on with. Raises `StoreError`."""
    _ask(folder, "plan", document)


def asked_pause(folder: SweepFolder) -> Pause | None:
    """Return the pause that was asked for, if there is one. Raises `StoreError`."""
    return folder.read_request("pause", read_pause)


def asked_parallel(folder: SweepFolder) -> int | None:
    """Return how many jobs at once were asked for, if that was. Raises `StoreError`."""
    return folder.read_request("parallel", read_parallel)


def asked_stop(folder: SweepFolder) -> Asked | None:
    """Return who wants the launcher to end, if anybody does. Raises `StoreError`."""
    return folder.read_request("stop", read_asked)


def asked_cancel(folder: SweepFolder) -> Asked | None:
    """Return who has cancelled the whole sweep, if anybody has. Raises `StoreError`."""
    return folder.read_request("cancel", read_asked)


def asked_plan(folder: SweepFolder) -> Plan | None:
    """The plan to go on with, if there is another. Raises `StoreError`."""
    return folder.read_request("plan", plan_file.read)


def forget(folder: SweepFolder, *names: str) -> None:
    """Take back requests (`plan`, `parallel`, `stop`, `cancel`). Raises `StoreError`."""
    folder.store.remove([folder.request(name) for name in names])


def _ask(folder: SweepFolder, name: str, document: dict[str, object]) -> None:
    folder.store.replace(folder.request(name), encode(document))
