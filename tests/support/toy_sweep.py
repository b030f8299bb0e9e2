"""A sweep of the chaos tests' toy on this machine. Its ledger records what really ran."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from harness.ledger import judge, read_ledger
from support.typed import Typed

from sweeper.store.local import LocalStore

TOY = Path(__file__).parents[1] / "chaos" / "harness" / "toy.py"


class ToySweep(Typed):
    """A grid of the toy in a folder, and `sweeper` with it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SWEEPER_ROOT=str(folder / "sweeps"))
        self.rows, self.steps = folder / "ledger", 0

    def write(
        self, runs: int, steps: int, seconds: float, mode: str = "plain", **launch: Any
    ) -> None:
        self.steps = steps
        command = [sys.executable, str(TOY), str(self.rows), str(steps), str(seconds)]
        grid = {
            "name": "toys",
            "command": [*command, mode, "{log_path}"],
            "service": "none",
            "base": {"a": 1},
            "seeds": runs,
            "launch": launch,
        }
        (self.folder / "grid.yaml").write_text(yaml.safe_dump(grid))

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        return super().start(*arguments, **({"stderr": subprocess.STDOUT} | options))

    def launch(self) -> subprocess.Popen[str]:
        return self.start("launch", "grid.yaml", "--wait")

    @staticmethod
    def end(process: subprocess.Popen[str], code: int = 0) -> str:
        output, _ = process.communicate(timeout=240)
        assert process.returncode == code, output
        return output

    @staticmethod
    def kill(launcher: subprocess.Popen[str]) -> None:
        launcher.kill()
        launcher.communicate()

    def go_on(self) -> None:
        """Release the toys that wait before a step."""
        Path(f"{self.rows}.go").touch()

    def done(self) -> list[tuple[str, int, int]]:
        """Return (run, attempt, step) of all executed steps."""
        return read_ledger(self.rows)

    def judge(self, **options: Any) -> None:
        """Assert that nothing is lost, doubled or wrong, by the ledger."""
        store = LocalStore(str(self.folder / "sweeps"))
        verdict = judge(store, "toys", self.done(), self.steps, **options)
        assert verdict.good, verdict

    def unreachable(self) -> str:
        """Return what the launcher publishes about a backend that does not answer."""
        path = self.folder / "sweeps" / "toys" / "launcher" / "observations.json"
        return str(json.loads(path.read_text())["unreachable"]) if path.exists() else ""

    def wrap(self, name: str, text: str) -> Path:
        """Put a shell script in front of a Slurm program in PATH. The script is used while the
        returned file exists; `$real` is the program, `$once` that file."""
        place, switch = self.folder / "bin", self.folder / f"{name}.once"
        real = shutil.which(name)
        place.mkdir(exist_ok=True)
        (place / name).write_text(
            f'#!/bin/sh\nreal={real}\nonce={switch}\n[ -e $once ] || exec $real "$@"\n{text}\n'
        )
        (place / name).chmod(0o755)
        self.environment["PATH"] = f"{place}:{os.environ['PATH']}"
        return switch
