"""One sweep under several names: a launcher finds a live worker under any path, link, mount, home
or process namespace of itself or of the launcher before it. The ledger shows no second attempt
while a worker lives, however long it is silent."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.real import NAME, Sweep, Sweeps, until

from sweeper.store.documents import read_json
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event

NAMESPACES = {
    "bind": ["--mount"],
    "namespace": ["--mount", "--pid", "--fork", "--mount-proc", "--kill-child"],
}


@pytest.fixture
def other_socket(tmux_socket: str) -> Iterator[str]:
    """Yield the name of another tmux server, and end it afterwards."""
    name = f"{tmux_socket}-b"
    yield name
    subprocess.run(["tmux", "-L", name, "kill-server"], capture_output=True, check=False)


def _other_name(sweep: Sweep, way: str, socket: str) -> dict[str, Any]:
    """Make another name of the sweep for a second launcher; returns the changes to its spec."""
    other = sweep.folder.parent / f"{sweep.folder.name}-{way}"
    if way == "home":
        identity = Path(sweep.environment["SWEEPER_HOME"], "identity")
        if identity.exists():  # both homes are one person's
            sweep.environment["SWEEPER_IDENTITY"] = identity.read_text()
        sweep.environment |= {"SWEEPER_HOME": str(other), "SWEEPER_TMUX_SOCKET": socket}
        return {}
    if way == "link":
        other.symlink_to(sweep.folder)
        return {"folder": str(other)}
    if way == "dots":  # the parent of the link's target, not of the link
        (sweep.folder / "below").mkdir()
        other.symlink_to(sweep.folder / "below")
        return {"folder": f"{other}/.."}
    other.mkdir()
    into = ["unshare", *NAMESPACES[way], "sh", "-c"]
    into += ['mount --bind "$0" "$1" && shift && exec "$@"', str(sweep.folder), str(other)]
    if subprocess.run([*into, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mounts of one's own here: they take root")
    return {"folder": str(other), "through": into, "fork": False}


@pytest.mark.parametrize("backend", ["local", "tmux"])
@pytest.mark.parametrize("way", ["link", "dots", "home", "bind", "namespace"])
def test_a_worker_that_is_silent_is_found_by_another_name(
    make_sweep: Sweeps, way: str, backend: str, other_socket: str
) -> None:
    """The launcher dies, the worker is silent for longer than the lease, and another launcher
    takes the sweep over under another name, or on another tmux server."""
    spec: Any = {"worker": {"beat": 600}}
    sweep = make_sweep(runs=1, lease=0.4, backend=backend, spec=spec, mode="waits")
    first = sweep.start()
    until(sweep.rows, why="nothing runs")
    first.kill()
    second = sweep.start(**_other_name(sweep, way, other_socket))
    until(lambda: "stale" in _seen(sweep) or len(sweep.rows()) > 1, why="nobody misses it")
    sweep.folder.joinpath("ledger.go").touch()
    sweep.end_well(second, once=True)


def test_a_job_at_work_is_stopped_by_another_name(make_sweep: Sweeps, other_socket: str) -> None:
    """The other tmux server has no window of the job, so its process is signalled at once."""
    spec: Any = {"worker": {"beat": 600}}
    sweep = make_sweep(runs=1, backend="tmux", spec=spec, mode="waits")
    first = sweep.start()
    until(sweep.rows, why="nothing runs")
    first.kill()
    _other_name(sweep, "home", other_socket)
    second = sweep.start()
    (run,) = sweep.states()
    sweep.store.create(sweep.sweep_folder.event(run, 1, Event.CANCEL), b"{}")
    assert second.wait() == 3, sweep.log.read_text()
    ended = read_json(sweep.store, sweep.sweep_folder.event(run, 1, Event.CANCELLED))
    assert ended["signal"] == "SIGTERM"  # the worker's own report


def _seen(sweep: Sweep) -> list[str]:
    """Return the last observations of launchers."""
    return [
        seen.kind.value
        for seen in SweepFolder(sweep.store, NAME).read_observations().observed.values()
    ]
