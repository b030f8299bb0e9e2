"""`sweeper` as a user types it in a folder."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SWEEPER = str(Path(sys.executable).parent / "sweeper")


class Typed:
    """`sweeper` in a folder, with a separate home. Variables that begin with one of `without` are
    not passed on."""

    seconds = 240.0

    def __init__(self, folder: Path, without: tuple[str, ...] = (), **environment: str) -> None:
        self.folder = folder
        passed = {k: v for k, v in os.environ.items() if not k.startswith(without)}
        self.environment = passed | {"SWEEPER_HOME": str(folder / "home")} | environment

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        given = {"cwd": self.folder, "env": self.environment, "stdout": pipe, "stderr": pipe}
        return subprocess.Popen([SWEEPER, *arguments], text=True, **(given | options))

    def complete(
        self, *arguments: str, code: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a verb, which must end with this exit code."""
        process = self.start(*arguments, env=self.environment | environment)
        output, errors = process.communicate(timeout=self.seconds)
        assert process.returncode == code, output + (errors or "")
        return subprocess.CompletedProcess(process.args, code, output, errors or "")

    def run(self, *arguments: str, code: int = 0, **environment: str) -> str:
        """Run a verb, and return its output."""
        done = self.complete(*arguments, code=code, **environment)
        return done.stdout + done.stderr

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Return the document that a verb prints with `--json`."""
        return json.loads(self.complete(*arguments, "--json", code=code).stdout)

    def places_of(self, sweep: str) -> dict[str, str]:
        """Return the place of each run's latest attempt."""
        return {run["id"]: run["backend"] for run in self.runs_of(sweep) if "backend" in run}

    def runs_of(self, sweep: str) -> list[dict[str, Any]]:
        return self.json("ls", sweep)["runs"]
