"""A terminal for tests: a private tmux server that gets keys and whose screen is read; and a sweep
with one run of each kind."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

PROGRAM = """
import json, math, os, signal, sys, time
kind, rate, seed, folder, seconds = *sys.argv[1:5], float(sys.argv[5])
marks = os.path.join(os.path.dirname(os.path.abspath(__file__)), "marks")
rate, noise = float(rate), int(seed) * 0.05
if kind == "fails" and os.environ.get("SWEEPER_ATTEMPT") == "1":
    known = {(0.01, "0"): "data", (0.01, "1"): "disk", (0.03, "0"): "model"}
    print(f"Traceback: no {known.get((rate, seed), 'tokenizer')} there", flush=True)
    sys.exit(1)
with open(os.path.join(folder, "metrics.jsonl"), "a", buffering=1) as file:
    for step in range(40):
        loss = 2.3 * math.exp(-rate * step * 9) + 0.2 + noise + 0.05 * math.sin(step * 2.0)
        if kind == "diverges" and step > 6:
            loss = math.nan
        row = {"step": step, "test/nll": loss, "train/loss": loss * 1.1, "lr": rate}
        file.write(json.dumps(row) + "\\n")
        print(f"step {step}/40 [bold]loss[/bold] {loss:.3f} \\x1b[31mred\\x1b[0m", flush=True)
        if kind == "waits" and step == 3:
            while True:  # as the SDK does
                print("Sampling for 1 is paused. Reason: rate limit", flush=True)
                time.sleep(20)
        time.sleep(seconds)
"""
GRID = """
name: {name}
command: [{python}, {program}, "{{kind}}", "{{learning_rate}}", "{{seed}}", "{{log_path}}", "{{seconds}}"]
base: {{max_steps: 40, seconds: {seconds}}}
grid: {{learning_rate: [0.01, 0.03], kind: [trains, fails, waits, diverges]}}
seeds: 2
service: none
metric: {{name: test/nll, goal: minimize}}
launch: {{backend: {backend}, max_parallel: 12, lease: 15s}}
alarms: {{stalled: {{after: 12s, factor: 2}}}}
"""  # noqa: E501 - one line of YAML


class Terminal:
    """A terminal of `width` by `height`, with a shell in `folder`. `environment` is added to that
    of the test."""

    def __init__(
        self,
        folder: Path,
        width: int,
        height: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._name = f"terminal-{uuid.uuid4().hex[:8]}"
        binaries = Path(sys.executable).parent
        variables = {k: v for k, v in os.environ.items() if k not in ("TMUX", "NO_COLOR")}
        path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
        variables |= {"PATH": path, "PS1": "$ ", "LC_ALL": "C.UTF-8"} | dict(environment or {})
        size = ["-x", str(width), "-y", str(height)]
        # Without tmux's variable, so that programs do not notice tmux.
        shell = ["env", "-u", "TMUX", *(f"{k}={v}" for k, v in (environment or {}).items())]
        command = ["tmux", "-u", "-f", os.devnull, "-L", self._name, "new-session", "-d", *size]
        command += ["-c", str(folder), *shell, "bash", "--norc", "--noprofile"]
        subprocess.run(command, env=variables, check=True)

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._name, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names (`Enter`, `Down`, `C-c`); other text is typed."""
        for key in keys:
            self.tmux("send-keys", key)

    def type(self, line: str) -> None:
        """Type a command line."""
        self.tmux("send-keys", "-l", line)
        self.press("Enter")

    def screen(self, *, escapes: bool = False) -> str:
        """Return the visible text."""
        return self.tmux("capture-pane", "-p", *(["-e"] if escapes else []))

    def wait(self, *texts: str, gone: str | None = None, seconds: float = 60.0) -> str:
        """Wait until all `texts` are visible, and `gone` is not; returns the screen."""

        now = ""

        def there() -> bool:
            nonlocal now
            now = self.screen()
            return all(text in now for text in texts) and (gone is None or gone not in now)

        wait_until(there, lambda: f"no {texts} (or still {gone}) in\n{now}", seconds)
        return now  # a later screen may lack the texts again

    def close(self) -> None:
        command = ["tmux", "-L", self._name, "kill-server"]
        subprocess.run(command, capture_output=True, check=False)


def wait_until(
    condition: Callable[[], object], what: Callable[[], str], seconds: float = 60.0
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


def write_grid(
    folder: Path, name: str = "demo", seconds: float = 0.5, backend: str = "tmux"
) -> Path:
    """Write a grid of sixteen runs: some train, fail, are delayed by the service, or diverge."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    grid = folder / f"{name}.yaml"
    values = {"python": json.dumps(sys.executable), "program": json.dumps(str(program))}
    grid.write_text(GRID.format(name=name, seconds=seconds, backend=backend, **values))
    return grid
