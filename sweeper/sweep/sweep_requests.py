"""Requests to the launcher of a sweep: files that are replaced as a whole. The running launcher
reads them in every step of its loop, and the next launcher reads them when it starts."""

import os

from sweeper.store.documents import encode, timestamp
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.plan import Plan, read
from sweeper.sweep.request import Pause, Request, read_asked, read_parallel, read_pause


def user() -> str:
    """Return `user@machine` for this process, as the author of requests."""
    import getpass  # imported late, since only writing requests needs it

    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        name = str(os.getuid())
    return f"{name}@{os.uname().nodename}"


def asked_now() -> Request:
    """Return a request by this user, made now."""
    return Request(user(), timestamp())


def ask_pause(folder: SweepFolder, *, on: bool, runs: bool = False) -> None:
    """Request that no more runs are started (`on`), or end the pause. With `runs`, running runs
    stop too. Raises `StoreError`."""
    _ask(folder, "pause", asked_now().document(on=on, runs=runs))


def ask_parallel(folder: SweepFolder, most: int | None) -> None:
    """Request a limit on the number of jobs that run at the same time; None requests the plan's
    limit. Raises `StoreError`."""
    _ask(folder, "parallel", asked_now().document(max_parallel=most))


def ask_stop(folder: SweepFolder) -> None:
    """Request that the running launcher ends. A launch revokes the request. Raises `StoreError`."""
    _ask(folder, "stop", asked_now().document())


def ask_cancel(folder: SweepFolder, by: str | None = None) -> None:
    """Record that the whole sweep was cancelled, so that the launcher chooses no runs for later
    stages. A launch or a retry revokes the request. Raises `StoreError`."""
    request = asked_now() if by is None else Request(by, timestamp())
    _ask(folder, "cancel", request.document())


def propose_plan(folder: SweepFolder, document: dict[str, object]) -> None:
    """Give the running launcher a new plan. Raises `StoreError`."""
    _ask(folder, "plan", document)


def asked_pause(folder: SweepFolder) -> Pause | None:
    """Return the requested pause; None if no pause is requested. Raises `StoreError`."""
    return folder.read_request("pause", read_pause)


def asked_parallel(folder: SweepFolder) -> int | None:
    """Return the requested limit on jobs. Return None if there is no request, or if the last
    request was to use the plan's limit. Raises `StoreError`."""
    return folder.read_request("parallel", read_parallel)


def asked_stop(folder: SweepFolder) -> Request | None:
    """Return the request to end the launcher; None if there is no such request. Raises
    `StoreError`."""
    return folder.read_request("stop", read_asked)


def asked_cancel(folder: SweepFolder) -> Request | None:
    """Return the request that cancelled the whole sweep; None if there is no such request. Raises
    `StoreError`."""
    return folder.read_request("cancel", read_asked)


def asked_plan(folder: SweepFolder) -> Plan | None:
    """Return the new plan; None if none was proposed. Raises `StoreError`."""
    return folder.read_request("plan", read)


def forget(folder: SweepFolder, *names: str) -> None:
    """Remove the requests `names` (`plan`, `parallel`, `stop`, `cancel`). Raises `StoreError`."""
    folder.store.remove([folder.request(name) for name in names])


def _ask(folder: SweepFolder, name: str, document: dict[str, object]) -> None:
    folder.store.replace(folder.request(name), encode(document))
