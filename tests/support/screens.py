"""Takes the screens of `docs/watch.md` from a real sweep in a real tmux: `make screens`.

A launch of sixteen runs, of which some train, fail, are held back by the service or diverge; the
worker of one is stopped, so that it stalls.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from screen import Terminal, wait_until, write_grid

from sweeper.store.documents import read_json
from sweeper.store.files import LocalStore
from sweeper.store.layout import Layout
from sweeper.store.lock import is_held
from sweeper.store.sweeps import read_plan

PAGE = Path(__file__).parents[2] / "docs" / "watch.md"


def stop_worker(root: Path, run: str) -> int:
    """Stop the worker of a run, as a machine that swaps would; gives its pid."""
    store, layout = LocalStore(str(root)), Layout("demo")
    (identity,) = [one["id"] for one in read_plan(store, "demo")["runs"] if one["name"] == run]
    path = layout.heartbeat(identity, 1)
    wait_until(lambda: store.exists(path), lambda: f"no {path}")
    pid: int = read_json(store, path)["pid"]
    os.kill(pid, signal.SIGSTOP)
    return pid


def taken(folder: Path, root: Path) -> dict[str, str]:
    """Name -> screen."""
    found: dict[str, str] = {}
    terminals = {size: Terminal(folder, *size) for size in ((80, 24), (200, 50))}
    pid = stop_worker(root, "lr=0.01,kind=trains,seed=1")
    try:
        for terminal in terminals.values():
            terminal.type("sweeper watch demo")
        for (width, height), terminal in terminals.items():
            found[f"{width}x{height}"] = terminal.wait("stalled", "waiting", "failed", "running")
        small = terminals[80, 24]
        small.press("Down", "Enter")
        found["a run"] = small.wait("curves", "test/nll")
    finally:
        os.kill(pid, signal.SIGCONT)
        for terminal in terminals.values():
            terminal.close()
    return found


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="screens-"))
    os.environ |= {
        "SWEEPER_HOME": str(folder / "home"),
        "SWEEPER_TMUX_SOCKET": f"sweeper-screens-{uuid.uuid4().hex[:8]}",
    }
    sweeper = [sys.executable, "-P", "-m", "sweeper"]
    try:
        write_grid(folder, "demo", seconds=1.5, backend="local")  # tmux wakes what is stopped
        subprocess.run([*sweeper, "launch", "demo.yaml"], cwd=folder, check=True)
        try:
            screens = taken(folder, folder / "sweeps")
        finally:
            subprocess.run([*sweeper, "cancel", "demo"], cwd=folder, check=False)
            store = LocalStore(str(folder / "sweeps"))
            wait_until(lambda: not is_held(store, "demo"), lambda: "the launcher does not end")
    finally:
        socket = os.environ["SWEEPER_TMUX_SOCKET"]
        subprocess.run(["tmux", "-L", socket, "kill-server"], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)
    text = PAGE.read_text()
    for name, screen in screens.items():
        lines = [line.rstrip() for line in screen.splitlines()]
        body = "\n".join(lines).rstrip()
        block = f"<!-- screen {name} -->\n```text\n{body}\n```\n"
        pattern = re.compile(rf"<!-- screen {name} -->\n```text\n.*?```\n", re.S)
        assert pattern.search(text), f"{PAGE} has no place for the screen {name!r}"
        text = pattern.sub(lambda _, block=block: block, text)
        print(block)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
