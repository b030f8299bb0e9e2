"""A sweep of toys on machines of a cluster: launched as a user does, and judged by its ledger."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.ledger import Row, judge, read_ledger
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import fold

_TOY = Path(__file__).with_name("toy.py")


class Toys:
    """Runs of the toy (see `toy.py`), with their grid in `folder`; `grid` has its other sections.
    `environment` are the variables of launchers."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], *, steps: int, seconds: float,
        mode: str = "plain", name: str = "toys", **grid: Any,
    ) -> None:  # fmt: skip
        folder.mkdir(exist_ok=True)
        self.folder, self.steps, self.name = folder, steps, name
        self.sweep_path = folder / "sweeps" / name
        self.environment = dict(environment) | {
            "SWEEPER_HOME": str(folder / "home"),
            "SWEEPER_ROOT": str(folder / "sweeps"),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        toy = [sys.executable, str(_TOY), str(folder / "ledger"), str(steps), str(seconds), mode]
        base = {} if "grid" in grid else {"base": {"a": 1}}
        whole = {"name": name, "command": [*toy, "{log_path}"], "service": "none", **base, **grid}
        (folder / "grid.yaml").write_text(json.dumps(whole))

    def launch(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "sweeper", "launch", "grid.yaml", "--wait"]
        null = subprocess.DEVNULL
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=null)

    def rows(self) -> list[Row]:
        return read_ledger(self.folder / "ledger")

    def unreachable(self) -> str | None:
        """Return what the launcher publishes about a cluster that does not answer."""
        with suppress(OSError, ValueError):
            path = self.sweep_path / "launcher" / "observations.json"
            return json.loads(path.read_text())["unreachable"]
        return None

    def agreed(self, *, once: bool) -> bool:
        """Return whether the ledger agrees with the events; print the counts. `once`: each run has
        one attempt."""
        store, rows = LocalStore(str(self.folder / "sweeps")), self.rows()
        verdict = judge(store, self.name, rows, self.steps, once=once, resumes=not once)
        folded = [fold(e) for e in SweepFolder(store, self.name).read_events().values()]
        states = Counter(run.state.value for run in folded)
        attempts = Counter(run.attempt for run in folded)
        print(
            f"{self.name}: states {dict(states)}, attempts {dict(attempts)}, rows {len(rows)}; "
            f"lost {len(verdict.lost)}, doubled {len(verdict.doubled)}, "
            f"wrong {len(verdict.wrong)}",
            flush=True,
        )
        if not verdict.good:
            print(verdict)
        return verdict.good
