"""Causes five common accidents and prints what a user sees: `python tests/chaos/accidents.py`
prints the screens of docs/reliability.md. Everything is as shipped except the recipe, a script of
a few lines."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sweeper.backends.tmux.server import socket_name

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.own_tmux import own_tmux

RECIPE = """
import json, os, sys, time
log_path, kind = sys.argv[1:3]
for step in range(20):
    with open(os.path.join(log_path, "metrics.jsonl"), "a") as file:
        file.write(json.dumps({"step": step, "loss": 1 / (1 + step)}) + "\\n")
    print(f"step {step}: loss {1 / (1 + step):.3f}", flush=True)
    time.sleep(0.15)
    if step == 3 and kind == "memory":
        taken = []
        while True:
            taken.append(bytearray(b"x" * (1 << 20)))
    if step == 3 and kind == "quota":
        sys.exit("tinker.RateLimitError: Error code: 429 - {'detail': 'quota exceeded'}")
    if step == 3 and kind == "paused" and not os.path.exists(log_path + "/waited"):
        open(log_path + "/waited", "w").close()
        print("Sampling is paused for sampler s-1. Reason: concurrent sampler weights limit hit")
        sys.stdout.flush()
        time.sleep(6)
    if step == 0 and kind == "bug":
        sys.exit(f"KeyError: 'reward' in rollout {os.getpid()}")
"""
GRID = """
name: {name}
service: none
command: [{python}, {recipe}, "{{log_path}}", {kind}, "{{learning_rate}}", "{{seed}}"]
grid: {{learning_rate: [1e-4, 3e-4, 1e-3]}}
seeds: 2
metric: {{name: loss, goal: minimize}}
launch: {{backend: {backend}, max_parallel: 2, retries: 1}}
"""


class Screen:
    """A user at a terminal: the typed commands and their output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ours = {"SWEEPER_HOME": str(folder / "home"), "COLUMNS": "100"}
        self.environment = {**os.environ, **ours}
        self.sweeper = str(Path(sys.executable).parent / "sweeper")

    def grid(self, name: str, kind: str, backend: str = "local") -> None:
        recipe = self.folder / "train.py"
        recipe.write_text(RECIPE)
        text = GRID.format(name=name, python="python3", recipe=recipe, kind=kind, backend=backend)
        (self.folder / f"{name}.yaml").write_text(text)

    def start(self, *words: str) -> "subprocess.Popen[str]":
        print(f"$ sweeper {' '.join(words)}", flush=True)
        return subprocess.Popen(
            [self.sweeper, *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def type(self, *words: str, lines: int = 40) -> None:
        process = self.start(*words)
        output, _ = process.communicate(timeout=300)
        shown = output.splitlines()
        self.show([*shown[:2], "...", *shown[-lines:]] if len(shown) > lines + 3 else shown)
        print(f"(exit code {process.returncode})\n", flush=True)

    def show(self, lines: list[str]) -> None:
        for line in lines:
            text = re.sub(r"\S*/sweeper-accident-\w*(\.\.\.)?", "/home/you", line)
            print(text.rstrip(), flush=True)


def laptop_closed(screen: Screen) -> None:
    screen.grid("lr", "plain")
    launcher = screen.start("launch", "lr.yaml", "--wait")
    time.sleep(4.5)
    launcher.kill()
    output, _ = launcher.communicate()
    screen.show([*output.splitlines(), "Killed\n"])
    screen.type("status", "lr")
    screen.type("launch", "lr.yaml", "--wait")
    screen.type("status", "lr")


def out_of_memory(screen: Screen) -> None:
    screen.grid("memory", "memory")
    groups = Path("/proc/self/cgroup").read_text().splitlines()
    old = [line.split(":", 2)[2] for line in groups if line.split(":")[1] == "memory"]
    base = Path("/sys/fs/cgroup/memory" + old[0] if old else "/sys/fs/cgroup")
    group = base / f"sweeper-accident-{os.getpid()}"
    try:
        group.mkdir()
        limit = "memory.limit_in_bytes" if old else "memory.max"
        (group / limit).write_text(str(256 << 20))
    except OSError as error:
        print(f"(not shown: no control group can be made here: {error})")
        return
    launcher = screen.start("launch", "memory.yaml", "launch.retries=0", "--wait")
    (group / "cgroup.procs").write_text(str(launcher.pid))
    output, _ = launcher.communicate(timeout=300)
    screen.show([*output.splitlines(), f"(exit code {launcher.returncode})\n"])
    screen.type("status", "memory")
    screen.type("logs", "memory/lr=1e-4,seed=0", lines=6)
    with suppress(OSError):
        group.rmdir()


def quota(screen: Screen) -> None:
    screen.grid("quota", "paused")
    launcher = screen.start("launch", "quota.yaml", "--wait")
    time.sleep(7)
    screen.type("status", "quota")
    output, _ = launcher.communicate(timeout=300)
    screen.show([*output.splitlines()[-6:], f"(exit code {launcher.returncode})\n"])
    screen.grid("refused", "quota")
    launcher = screen.start("launch", "refused.yaml", "--wait")
    time.sleep(12)
    screen.type("status", "refused")
    launcher.send_signal(signal.SIGINT)
    output, _ = launcher.communicate(timeout=60)
    screen.show([*output.splitlines()[-4:], f"(exit code {launcher.returncode})\n"])


def recipe_bug(screen: Screen) -> None:
    screen.grid("bug", "bug")
    screen.type("launch", "bug.yaml", "launch.retries=0", "--wait")
    screen.type("status", "bug")


def tmux_killed(screen: Screen) -> None:
    if shutil.which("tmux") is None:
        print("(not shown: there is no tmux here)")
        return
    screen.grid("windows", "plain", "tmux")
    launcher = screen.start("launch", "windows.yaml", "--wait")
    time.sleep(4)
    kill = ["tmux", "-L", socket_name(), "kill-server"]
    print("$", *kill, flush=True)
    subprocess.run(kill, check=True)
    time.sleep(0.7)
    screen.type("status", "windows")
    output, _ = launcher.communicate(timeout=300)
    screen.show([*output.splitlines()[-8:], f"(exit code {launcher.returncode})\n"])
    screen.type("status", "windows")


def main() -> int:
    parts: list[Callable[[Screen], None]] = [
        laptop_closed,
        out_of_memory,
        quota,
        recipe_bug,
        tmux_killed,
    ]
    for part in parts:
        print(f"\n## {part.__name__.replace('_', ' ')}\n", flush=True)
        with tempfile.TemporaryDirectory(prefix="sweeper-accident-") as folder, own_tmux():
            part(Screen(Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
