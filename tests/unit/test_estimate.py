"""The expected usage of a launch, from earlier runs or from the recipe, or none."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import written

from sweeper.cli import main

GRID = """
name: next
command: [echo, "{{lr}}", "{{size}}"]
base: {{max_steps: {steps}, size: {size}}}
grid: {{lr: [0.1, 0.2]}}
seeds: 3
launch: {{backend: local, max_parallel: 2}}
"""


@pytest.fixture
def plan(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Any:
    """Plan with earlier runs of 10 steps and size 1 (1,000 and 3,000 tokens)."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    row = {"tinker_id": "m", "prefill": 1, "sample": 1, "train": 1000}
    (tmp_path / "models.json").write_text(json.dumps([row]))
    assert main(["costs", "--prices", "--refresh", str(tmp_path / "models.json")]) == 0
    recipe = {"reference": "echo", "kind": "command", "command": ["echo"]}
    sweep = written.Written(tmp_path / "root", "before", {"lr": [0.5]}, recipe=recipe)
    sweep.document["service"] = "none"
    for seed, tokens in enumerate((1000, 3000)):
        used = {"models": {"m": {"train": tokens, "steps": 10}}}
        sweep.run(
            {"lr": 0.5}, seed, config={"lr": 0.5, "max_steps": 10, "size": 1}, wall_s=3600.0,
            usage=used,
        )  # fmt: skip
    sweep.save()

    def estimated(steps: int, size: int) -> tuple[dict[str, Any] | None, str]:
        (tmp_path / "grid.yaml").write_text(GRID.format(steps=steps, size=size))
        verb = ["plan", str(tmp_path / "grid.yaml"), "--root", str(tmp_path / "root")]
        capsys.readouterr()
        assert main([*verb, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        sweep.document["recipe"] = document["recipe"]  # the program is the same
        sweep.save()
        assert main([*verb, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert main(verb) == 0
        return document["estimate"], capsys.readouterr().out

    return estimated


def test_earlier_runs_alike_give_an_estimate(plan):
    estimate, text = plan(10, 1)
    assert (estimate["tokens"], estimate["usd"], estimate["runs"]) == (12_000, 12.0, 6)
    assert (estimate["least"], estimate["most"], estimate["hours"]) == (6.0, 18.0, 3.0)
    assert "about 12.00 dollars (6.00 to 18.00) at prices of 20" in text
    assert "12,000 tokens, 3h00m with 2 runs at a time (from 2 earlier runs)" in text


def test_more_steps_cost_in_proportion(plan):
    estimate, _ = plan(20, 1)
    assert (estimate["tokens"], estimate["hours"]) == (24_000, 6.0)


def test_runs_of_another_size_give_no_estimate(plan):
    estimate, text = plan(10, 2)
    assert estimate is None
    assert "about" not in text


PROGRAM = """
import chz

@chz.chz
class Config:
    log_path: str = "x"
    steps: int = 1
    seed: int = 0

def estimate(values):
    {estimate}

def main(config: Config) -> None:
    pass

if __name__ == "__main__":
    chz.nested_entrypoint(main)
"""


@pytest.fixture
def reckoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Return a function from a recipe's estimate to what `sweeper plan` says of four runs."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)

    def estimated(estimate: str) -> tuple[dict[str, Any] | None, str]:
        Path("program.py").write_text(PROGRAM.format(estimate=estimate))
        Path("grid.yaml").write_text(
            "name: s\nrecipe: program.py\nservice: none\ngrid: {steps: [1, 2]}\nseeds: 2\n"
        )
        assert main(["plan", "grid.yaml", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert main(["plan", "grid.yaml"]) == 0
        return document["estimate"], capsys.readouterr().out

    return estimated


def test_the_recipe_estimates_a_first_launch(reckoned):
    estimate, text = reckoned(
        "return {'unpriced': {'train': 100.2 * values['steps'], 'sample': 5, 'lunch': 7}}"
    )
    assert (estimate["tokens"], estimate["runs"], estimate["by_recipe"]) == (2 * (105 + 205), 4, 4)
    assert (estimate["hours"], estimate["examples"], estimate["usd"]) == (None, 0, None)
    assert "about 620 tokens (the recipe's estimate)" in text


@pytest.mark.parametrize(
    "estimate",
    [
        "return None", "return {}", "return {'m': {'train': 0}}", "return {'m': 3}",
        "raise SystemExit", "1/0",
    ],
)  # fmt: skip
def test_a_failing_estimate_of_a_recipe_does_not_fail_the_plan(reckoned, estimate):
    result, text = reckoned(estimate)
    assert result is None
    assert "about" not in text
