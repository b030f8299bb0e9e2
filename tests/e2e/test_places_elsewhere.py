"""One sweep on stand-ins for Beaker and Kubernetes, with a store on S3."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import shell as shells

from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder

pytestmark = pytest.mark.e2e
HOLDS = "mode=resume:first:holds-3"


class Sweep(shells.SweepElsewhere):
    """The toy sweep in a checkout, with two parallel jobs on each of two backends."""

    def __init__(self, shell: Any, places: dict[str, Any]) -> None:
        super().__init__(shell, "beaker", places["beaker"])
        grid = yaml.safe_load((shell.folder / "grid.yaml").read_text())
        backends = [{p: {**place.options(), "max_parallel": 2}} for p, place in places.items()]
        grid["launch"] = {"backends": backends, "lease": "15s", "sync": "1s", "grace": "1s"}
        (shell.folder / "grid.yaml").write_text(json.dumps(grid))

    def go_on(self) -> None:
        """Let the held runs continue."""
        Path(f"{self.shell.ledger}.go").touch()

    def runs_at(self, step: int) -> set[str]:
        """Return the runs that have reached this step."""
        return {run for run, _, at in self.shell.executed() if int(at) == step}

    def unreachable(self) -> str:
        return str(SweepFolder(open_store(self.root), "toys").read_observations().unreachable)


@pytest.fixture
def sweep(
    tmp_path: Path,
    beaker: Any,
    kube: Any,
    s3_root: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Sweep:
    monkeypatch.setenv("SWEEPER_ROOT", s3_root)
    places = {"beaker": beaker, "kubernetes": kube}
    for place in places.values():
        aws = {key: value for key, value in os.environ.items() if key.startswith("AWS_")}
        place.environment = aws
    return Sweep(shells.ShellElsewhere(tmp_path, "beaker", beaker.options(), s3_root), places)


def test_a_launch_while_one_place_is_away(sweep: Sweep, beaker: Any, kube: Any) -> None:
    """It starts on the other backend and says so. The silent one is used once it answers."""
    beaker.silent = True
    launcher = sweep.start("x=[1,2,3,4]", HOLDS)
    sweep.shell.until(lambda: len(sweep.runs_at(2)) == 2)
    assert Counter(sweep.shell.places_of("toys").values()) == {"kubernetes": 2}
    sweep.shell.until(lambda: "does not answer" in sweep.unreachable())
    assert "beaker: " in sweep.shell.run("status", "toys", code=4)
    beaker.silent = False
    sweep.shell.until(lambda: len(sweep.runs_at(2)) == 4)
    assert Counter(sweep.shell.places_of("toys").values()) == {"kubernetes": 2, "beaker": 2}
    sweep.go_on()
    output, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, output + errors
    assert "beaker does not answer, and gets no jobs until it does: " in errors
    sweep.shell.judge(once=True)


def test_a_launch_where_no_place_answers(sweep: Sweep, beaker: Any, kube: Any) -> None:
    beaker.silent = kube.silent = True
    output, errors = sweep.start().communicate(timeout=120)
    assert "beaker: " in errors and "kubernetes: " in errors, output + errors
    assert not list(open_store(sweep.root).names("toys"))
