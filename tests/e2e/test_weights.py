"""`sweeper weights`: from the winner of a sweep to files that other programs load."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from sweeper.engine import lifecycle

pytestmark = pytest.mark.e2e

Run = Callable[..., "subprocess.CompletedProcess[str]"]
GRID = """
name: taught
recipe: sft
service: local
base: {max_steps: 4, save_every: 2, eval_every: 0, train_size: 40, test_size: 4, lora_rank: 8}
grid: {learning_rate: [1e-5, 1e-2]}
metric: {name: test/nll, goal: minimize, at: last}
launch: {backend: local, max_parallel: 2}
"""


@pytest.fixture(scope="module")
def sweeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """The command line, in a folder with the sweep `taught`, whose engine runs."""
    folder = tmp_path_factory.mktemp("weights")
    home = folder / "home"
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TINKER_", "WANDB_"))}
    ours |= {"SWEEPER_HOME": str(home), "SWEEPER_ROOT": str(folder / "sweeps")}

    def run(*arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "sweeper", *arguments]
        return subprocess.run(
            command, cwd=folder, env=ours | more, capture_output=True, text=True, check=False
        )

    (folder / "grid.yaml").write_text(GRID)
    done = run("launch", "grid.yaml", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    yield run
    lifecycle.stop(str(home))


def test_the_best_run_of_a_sweep_is_downloaded_with_a_card(sweeper: Run, tmp_path: Path) -> None:
    target = tmp_path / "winner"
    done = sweeper("weights", "taught", "--to", str(target), "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["run"] == "taught/lr=1e-2"
    assert facts["checkpoint"] == "final"
    config = json.loads((target / "adapter_config.json").read_text())
    assert config["r"] == 8
    arrays = load_file(target / "adapter_model.safetensors")
    assert arrays and any(array.any() for name, array in arrays.items() if ".lora_B." in name)
    card = (target / "README.md").read_text()
    assert f"base_model: {config['base_model_name_or_path']}" in card
    assert "# taught/lr=1e-2" in card
    assert "| learning_rate | 0.01 |" in card
    assert "- test/nll: " in card
    assert not list(tmp_path.glob("winner.*"))


def test_a_checkpoint_by_name_differs_from_the_final_one(sweeper: Run, tmp_path: Path) -> None:
    names = {}
    for which in ("final", "000002", "best"):
        target = tmp_path / which
        done = sweeper("weights", "taught/lr=1e-2", "--which", which, "--to", str(target))
        assert done.returncode == 0, done.stderr
        names[which] = (target / "adapter_model.safetensors").read_bytes()
    assert names["final"] != names["000002"]
    assert names["best"] in (names["final"], names["000002"])


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("taught", "--to", "."), 2, "exists already"),
        (("taught", "--to", "no/such/folder"), 2, "there is no folder"),
        (("taught/lr=1e-2", "--which", "other", "--to", "x"), 5, "no checkpoint 'other'"),
        (("nothing", "--to", "x"), 5, "nothing"),
        (("taught", "--to", "x", "--push", "me/mine"), 2, "--push needs HF_TOKEN"),
        (("taught", "--to", "x", "--format", "peft"), 2, "this needs tinker-cookbook"),
        (
            ("taught", "--to", "x", "--format", "merged", "--python", "/no/python"),
            2,
            "no interpreter /no/python",
        ),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    sweeper: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, line: str
) -> None:
    given = [str(tmp_path / a) if before == "--to" else a
             for before, a in zip(("", *arguments), arguments, strict=False)]  # fmt: skip
    done = sweeper("weights", *given)
    assert done.returncode == code, done.stderr
    assert line in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
