"""Updates the screens in `docs/watch.md` from a real sweep in a real tmux: `make screens`.

It launches sixteen runs, some of which train, fail, are delayed by the service or diverge. One
recipe is stopped, so that it stalls; another is stopped with its worker, so that it is silent.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
from own_tmux import own_tmux
from screen import Terminal, wait_until, write_grid

from sweeper.store.documents import read_json
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.lock import is_held

PAGE = Path(__file__).parents[2] / "docs" / "watch.md"


def worker_of(root: Path, run: str) -> psutil.Process:
    """Return the worker of a run's first attempt, once it sends heartbeats and the run has taken
    some steps."""
    store = LocalStore(str(root))
    folder = SweepFolder(store, "demo")
    (identity,) = [planned.id for planned in folder.read_plan().runs if planned.name == run]
    path = folder.heartbeat(identity, 1)
    metrics = root / folder.log_path(identity, 1) / "metrics.jsonl"
    wait_until(
        lambda: store.exists(path) and metrics.exists() and metrics.read_bytes().count(b"\n") > 5,
        lambda: f"no steps in {metrics}",
    )
    return psutil.Process(read_json(store, path)["pid"])


def taken(folder: Path, root: Path) -> dict[str, str]:
    """Return the screens by name."""
    screens: dict[str, str] = {}
    terminals = {size: Terminal(folder, *size) for size in ((80, 24), (200, 50))}
    silenced = worker_of(root, "lr=0.03,kind=trains,seed=1")
    stalled = worker_of(root, "lr=0.01,kind=trains,seed=1").children()
    stopped = [*stalled, silenced, *silenced.children()]
    for process in stopped:
        process.suspend()
    try:
        for terminal in terminals.values():
            terminal.type("sweeper watch demo")
        for (width, height), terminal in terminals.items():
            screens[f"{width}x{height}"] = terminal.wait(
                "4 waiting, 1 stalled, 1 silent, 4 failed", "? help"
            )
        small = terminals[80, 24]
        small.press("Down", "Enter")
        screens["a run"] = small.wait("test/nll", "? help", gone="/ filter")
    finally:
        for process in stopped:
            process.resume()
        for terminal in terminals.values():
            terminal.close()
    return screens


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="screens-"))
    os.environ["SWEEPER_HOME"] = str(folder / "home")
    sweeper = [sys.executable, "-P", "-m", "sweeper"]
    try:
        with own_tmux():
            write_grid(folder, "demo", seconds=1.5, backend="local")  # tmux wakes stopped processes
            subprocess.run([*sweeper, "launch", "demo.yaml"], cwd=folder, check=True)
            try:
                screens = taken(folder, folder / "sweeps")
            finally:
                subprocess.run([*sweeper, "cancel", "demo"], cwd=folder, check=False)
                store = LocalStore(str(folder / "sweeps"))
                wait_until(
                    lambda: not is_held(SweepFolder(store, "demo")),
                    lambda: "the launcher does not end",
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = PAGE.read_text()
    for name, screen in screens.items():
        lines = [line.rstrip().replace(str(folder), "~") for line in screen.splitlines()]
        body = "\n".join(lines).rstrip()
        block = f"<!-- screen {name} -->\n```text\n{body}\n```\n"
        pattern = re.compile(rf"<!-- screen {name} -->\n```text\n.*?```\n", re.S)
        assert pattern.search(text), f"{PAGE} has no place for the screen {name!r}"
        text = pattern.sub(lambda _, block=block: block, text)
        print(block)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
