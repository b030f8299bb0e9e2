"""A sweep of two small runs of `sft`, and the command line to query it. One run learns."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

GRID = """
name: taught
recipe: sft
service: local
base: {max_steps: 4, save_every: 2, eval_every: 0, train_size: 40, test_size: 4, lora_rank: 8}
grid: {learning_rate: [1e-5, 1e-2]}
metric: {name: test/nll, goal: minimize, at: last}
launch: {backend: local, max_parallel: 2}
"""


class Taught:
    """The command line, in a folder with the finished sweep `taught`, whose engine runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.root = folder, folder / "home", folder / "sweeps"
        others = ("HF_", "TINKER_", "WANDB_")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(others)}
        self.environment |= {"SWEEPER_HOME": str(self.home), "SWEEPER_ROOT": str(self.root)}
        (folder / "grid.yaml").write_text(GRID)
        done = self("launch", "grid.yaml", "--wait")
        assert done.returncode == 0, done.stdout + done.stderr

    def __call__(
        self, *arguments: str, lines: str = "", **more: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, with more variables."""
        command = [sys.executable, "-m", "sweeper", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment | more,
            input=lines, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def start(
        self, *arguments: str, out: Any = None, group: bool = False, **more: str
    ) -> "subprocess.Popen[bytes]":
        """Start a command. `group`: in a new process group."""
        command = [sys.executable, "-m", "sweeper", *arguments]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment | more, stdout=out,
            start_new_session=group,
        )  # fmt: skip
