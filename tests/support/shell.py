"""A folder with a toy recipe and its grid, and `sweeper` as a user runs it. The toy records its
actions in its own ledger. After its first step it waits while the file `hold` exists, so that a
test cannot be too slow."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.ledger import judge, read_ledger
from ruamel.yaml import YAML
from support.typed import Typed

from sweeper.backends import open_backend
from sweeper.backends.base import Backend
from sweeper.results.registry import Registry
from sweeper.results.sweeps import SweepRun
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event

TOY = """
import json, os, time
import chz

@chz.chz
class Config:
    log_path: str
    ledger: str
    learning_rate: float = 0.1
    seconds: float = 0.5
    fail: bool = False
    flag: str = ""
    hold: str = ""
    seed: int = 0
    behavior_if_log_dir_exists: str = "ask"

def main(config: Config) -> None:
    assert config.behavior_if_log_dir_exists == "resume"  # nobody is there to be asked
    attempt = os.environ["SWEEPER_ATTEMPT"]
    for step in range(5):
        line = f"{os.environ['SWEEPER_RUN']} {attempt} {step}\\n"
        descriptor = os.open(config.ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, line.encode())
        os.close(descriptor)
        with open(os.path.join(config.log_path, "metrics.jsonl"), "a") as file:
            file.write(json.dumps({"step": step, "loss": 1 / (1 + step)}) + "\\n")
        while config.hold and os.path.exists(config.hold):
            time.sleep(0.05)
        time.sleep(config.seconds / 5)
    if config.fail or (config.flag and not os.path.exists(config.flag)):
        raise RuntimeError("the toy was told to fail")

if __name__ == "__main__":
    chz.nested_entrypoint(main)
"""
GRID = """
name: toys
recipe: toy.py
service: none
base: {{ledger: {ledger}, hold: {hold}}}
grid: {{learning_rate: [0.1, 0.3]}}
seeds: 3
metric: {{name: loss, goal: minimize}}
launch: {{backend: {backend}, max_parallel: 2}}
"""

ELSEWHERE = """
name: toys
command: [{python}, toy.py, '{ledger}', '10', '{{seconds}}', '{{mode}}', '{{log_path}}']
service: none
base: {{seconds: 1, mode: resume}}
grid: {{x: [1, 2, 3]}}
metric: {{name: loss, goal: minimize}}
launch:
  backend: {backend}
  lease: 15s
  sync: 1s
  {section}: {options}
"""


class Shell(Typed):
    """A folder with the toy and its grid, and `sweeper` as a user runs it."""

    def __init__(self, folder: Path, backend: str) -> None:
        super().__init__(folder)
        self.ledger, self.hold = folder / "ledger", folder / "hold"
        (folder / "toy.py").write_text(TOY)
        grid = GRID.format(ledger=self.ledger, hold=self.hold, backend=backend)
        (folder / "grid.yaml").write_text(grid)

    def manifests(self, *arguments: str) -> list[Any]:
        """Return the parsed YAML of `plan --manifest` for the grid."""
        printed = self.complete("plan", "grid.yaml", "--manifest", *arguments).stdout
        return list(YAML(typ="safe").load_all(printed))

    def states(self) -> Counter[str]:
        process = self.start("status", "toys", "--json")
        output, _ = process.communicate(timeout=240)
        return Counter(run["state"] for run in json.loads(output)["runs"])

    def until_states(self, expected: Mapping[str, int]) -> None:
        """Wait until the runs have these states. They are read in this process, because starting
        `status` repeatedly would take processor time from the runs."""
        root = self.environment.get("SWEEPER_ROOT", str(self.folder / "sweeps"))

        def states() -> Counter[str]:
            runs = Registry(root, cache=False).sweep("toys").runs
            return Counter(run.state.value for run in runs)

        self.until(lambda: states() == expected)

    def executed(self) -> Counter[tuple[str, str, str]]:
        """Return (run, attempt, step) -> number of executions."""
        lines = self.ledger.read_text().split("\n")[:-1] if self.ledger.exists() else []
        return Counter((*line.split(" "),) for line in lines)  # type: ignore[misc]

    @staticmethod
    def until(condition: Callable[[], object]) -> None:
        """Wait for a condition. Checking uses at most a fifth of a processor."""
        deadline = time.monotonic() + 90
        while True:
            begun = time.process_time()
            if condition():
                return
            assert time.monotonic() < deadline, "waited 90 s in vain"
            time.sleep(max(0.1, 4 * (time.process_time() - begun)))


class ShellElsewhere(Shell):
    """A checkout with the toy of the chaos tests, whose runs execute on other machines. Its store
    is `root`, on S3."""

    def __init__(self, folder: Path, backend: str, options: Mapping[str, Any], root: str) -> None:
        checkout = folder / "checkout"
        checkout.mkdir()
        super().__init__(checkout, backend)
        self.root, self.ledger = root, folder / "ledger"
        self.environment["SWEEPER_HOME"] = str(folder / "home")
        shutil.copy(Path(__file__).parents[1] / "chaos" / "harness" / "toy.py", checkout)
        text = ELSEWHERE.format(
            python=sys.executable,
            ledger=self.ledger,
            backend=backend,
            section=backend.replace("-", "_"),
            options=json.dumps(options),
        )
        (checkout / "grid.yaml").write_text(text)
        subprocess.run(["git", "init", "-q"], cwd=checkout, check=True)

    def runs(self) -> list[SweepRun]:
        return Registry(self.root, cache=False).sweep("toys").runs

    def run_states(self) -> Counter[str]:
        return Counter(run.state.value for run in self.runs())

    def wait_out_a_lease(self) -> None:
        """Wait, during an outage, until the launcher reports it, and then for longer than the
        lease. All runs are executing, and none may be lost meanwhile."""
        before = self.run_states()
        assert set(before) == {"running"}
        self.until(
            lambda: SweepFolder(open_store(self.root), "toys").read_observations().unreachable
        )
        time.sleep(60 if "SWEEPER_TEST_WHOLE" in os.environ else 18)
        assert self.run_states() == before

    def judge(self, **options: Any) -> None:
        """Assert that the ledger and the store agree on every run."""
        rows = read_ledger(self.ledger)
        verdict = judge(open_store(self.root), "toys", rows, 10, resumes=True, **options)
        assert verdict.good, verdict


class SweepElsewhere:
    """The toy's grid in a `ShellElsewhere`, and `service`, the stand-in where its jobs execute."""

    def __init__(self, shell: ShellElsewhere, backend: str, service: Any) -> None:
        self.shell, self.root, self.service = shell, shell.root, service
        self._backend = backend
        self.grid = shell.folder / "grid.yaml"
        self._text = self.grid.read_text()

    def write(self, more: str = "", **options: Any) -> None:
        """Write the grid with other options of the backend, and with more lines."""
        plain, changed = self.service.options(), self.service.options(**options)
        self.grid.write_text(self._text.replace(json.dumps(plain), json.dumps(changed)) + more)

    def start(self, *given: str) -> subprocess.Popen[str]:
        return self.shell.start("launch", "grid.yaml", *given, "--wait")

    def well(self, launcher: subprocess.Popen[str], seconds: float = 240) -> None:
        """Wait for the end of a launcher, and assert its exit code 0."""
        output, errors = launcher.communicate(timeout=seconds)
        assert launcher.returncode == 0, output + errors

    def backend(self) -> Backend:
        folder = f"{self.root}/toys"
        return open_backend(self._backend, "toys", folder, self.service.options())

    def waits_for(self, reason: str) -> bool:
        observed = SweepFolder(open_store(self.root), "toys").read_observations().observed.values()
        return any(reason in str(seen.reason) for seen in observed)

    def events(self) -> dict[str, set[tuple[int, Event]]]:
        return SweepFolder(open_store(self.root), "toys").read_events()

    def at_step(self, step: int) -> int:
        """Return how many executions have reached this step."""
        return sum(int(at) == step for _, _, at in self.shell.executed())
