"""One sweep under several names: a live worker is found by any path, link, mount, home or process
namespace of its launcher, or the next one. By the ledger, there is no second attempt while a
worker lives there, however long it is silent."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.real import NAME, Sweep, until

from sweeper.store.documents import read_json
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event

Sweeps = Callable[..., Sweep]

NAMESPACES = {
    "bind": ["--mount"],
    "namespace": ["--mount", "--pid", "--fork", "--mount-proc", "--kill-child"],
}


@pytest.fixture
def other_socket(tmux_socket: str) -> Iterator[str]:
    """Another tmux server, removed afterwards."""
    name = f"{tmux_socket}-b"
    yield name
    subprocess.run(["tmux", "-L", name, "kill-server"], capture_output=True, check=False)


def _other_name(one: Sweep, way: str, socket: str) -> dict[str, Any]:
    """Give a second launcher another name of the sweep."""
    other = one.folder.parent / f"{one.folder.name}-{way}"
    if way == "home":
        identity = Path(one.environment["SWEEPER_HOME"], "identity")
        if identity.exists():  # both homes are one person's
            one.environment["SWEEPER_IDENTITY"] = identity.read_text()
        one.environment |= {"SWEEPER_HOME": str(other), "SWEEPER_TMUX_SOCKET": socket}
        return {}
    if way == "link":
        other.symlink_to(one.folder)
        return {"folder": str(other)}
    if way == "dots":  # above the link's target, which differs from what its name says
        (one.folder / "below").mkdir()
        other.symlink_to(one.folder / "below")
        return {"folder": f"{other}/.."}
    other.mkdir()
    into = ["unshare", *NAMESPACES[way], "sh", "-c"]
    into += ['mount --bind "$0" "$1" && shift && exec "$@"', str(one.folder), str(other)]
    if subprocess.run([*into, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mounts of one's own here: they take root")
    return {"folder": str(other), "through": into, "fork": False}


@pytest.mark.parametrize("backend", ["local", "tmux"])
@pytest.mark.parametrize("way", ["link", "dots", "home", "bind", "namespace"])
def test_a_worker_that_is_silent_is_found_by_another_name(
    sweep: Sweeps, way: str, backend: str, other_socket: str
) -> None:
    """The launcher dies, the worker is silent for longer than the lease, and another launcher
    takes the sweep over under another name, or on another tmux server."""
    spec: Any = {"worker": {"beat": 600}}
    one = sweep(runs=1, lease=0.4, backend=backend, spec=spec, mode="waits")
    first = one.start()
    until(one.rows, why="nothing runs")
    first.kill()
    second = one.start(**_other_name(one, way, other_socket))
    until(lambda: "stale" in _seen(one) or len(one.rows()) > 1, why="nobody misses it")
    one.folder.joinpath("ledger.go").touch()
    assert second.wait() == 0, one.log.read_text()
    one.rest()
    assert one.verdict(once=True).good


def test_a_job_at_work_is_stopped_by_another_name(sweep: Sweeps, other_socket: str) -> None:
    """The other tmux server has no window of it: its process is signalled, at once."""
    spec: Any = {"worker": {"beat": 600}}
    one = sweep(runs=1, backend="tmux", spec=spec, mode="waits")
    first = one.start()
    until(one.rows, why="nothing runs")
    first.kill()
    _other_name(one, "home", other_socket)
    second = one.start()
    (run,) = one.states()
    one.store.create(one.sweep_folder.event(run, 1, Event.CANCEL), b"{}")
    assert second.wait() == 3, one.log.read_text()
    ended = read_json(one.store, one.sweep_folder.event(run, 1, Event.CANCELLED))
    assert ended["signal"] == "SIGTERM"  # the worker's own report


def _seen(one: Sweep) -> list[str]:
    """Return the last observations of launchers."""
    return [
        seen.kind.value
        for seen in SweepFolder(one.store, NAME).read_observations().observed.values()
    ]
