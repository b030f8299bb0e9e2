"""A small grids/pipeline.yaml: each stage starts from the previous stage's checkpoint."""

import json
import sys
from pathlib import Path

import pytest
from support import shell as shells

from sweeper.cli import main
from sweeper.engine import lifecycle
from sweeper.results.registry import Registry

pytestmark = pytest.mark.e2e

GRID = Path(__file__).parents[2] / "grids" / "pipeline.yaml"
SMALL = (
    *(f"sft.{text}" for text in ("max_steps=2", "seeds=1", "learning_rate=8e-3", "lora_rank=8")),
    *(f"dpo.{text}" for text in ("max_steps=2", "seeds=1", "dpo_beta=0.5", "warmup_steps=0")),
    *(f"rl.{text}" for text in ("max_steps=1", "seeds=1", "learning_rate=3e-4", "warmup_steps=0")),
    *("sft.test_size=4", "dpo.test_size=4", "rl.test_size=4"),
    *("eval.max_items=4", "launch.backend=local"),
)


def test_a_pipeline_runs_from_the_base_model_to_compared_checkpoints(
    tmp_path: Path, engine: lifecycle.EngineInfo
) -> None:
    shell = shells.Shell(tmp_path, "local")
    shell.environment |= {"SWEEPER_HOME": engine.home, "SWEEPER_QUOTA": str(tmp_path / "quota")}
    output = shell.run("plan", str(GRID), *SMALL)
    assert "    rl      1 run not known yet" in output
    shell.run("launch", str(GRID), *SMALL, "--wait")
    runs = {run.name: run for run in Registry(str(tmp_path / "sweeps")).sweep("pipeline").runs}
    assert {run.state.value for run in runs.values()} == {"succeeded"}
    chains = {name: [above.name for above in run.lineage] for name, run in runs.items()}
    assert chains == {
        "sft/seed=0": [],
        "dpo/seed=0": ["sft/seed=0"],
        "rl/seed=0": ["dpo/seed=0", "sft/seed=0"],
        "eval/sft-best": ["sft/seed=0"],
        "eval/dpo,seed=0": ["dpo/seed=0", "sft/seed=0"],
        "eval/rl,seed=0": ["rl/seed=0", "dpo/seed=0", "sft/seed=0"],
        "eval/base": [],
    }
    for name in ("dpo/seed=0", "rl/seed=0", "eval/rl,seed=0"):
        above = runs[chains[name][0]].checkpoint_records()[-1]
        config = json.loads((Path(runs[name].path) / "config.json").read_text())
        assert config["load_checkpoint_path"] == above["state_path"]
    base = json.loads((Path(runs["eval/base"].path) / "config.json").read_text())
    assert base["load_checkpoint_path"] is None
    output = shell.run("analyze", "pipeline", "--no-pictures")
    assert "the baseline" in output
    _check_page(Path(output.rpartition("all stages: ")[2].strip()))


def _check_page(page: Path) -> None:
    """Check the reports of all stages, and what each chain used."""
    document = json.loads((page.parent / "report.json").read_text())
    assert [stage["name"] for stage in document["stages"]] == ["sft", "dpo", "rl", "eval"]
    assert all((page.parent / stage["report"]).exists() for stage in document["stages"])
    chains = {chain["links"][-1]["run"]: chain for chain in document["chains"]}
    longest = chains["rl,seed=0"]
    assert [link["stage"] for link in longest["links"]] == ["sft", "dpo", "rl", "eval"]
    assert all(isinstance(link["value"], float) for link in longest["links"])
    assert longest["tokens"] > chains["dpo,seed=0"]["tokens"] > chains["base"]["tokens"] > 0
    text = page.read_text()
    assert 'href="eval/report.html"' in text
    assert "<script" not in text


TRAIN = (
    "import json, sys\n"
    "row = json.dumps({'step': 1, 'loss': float(sys.argv[1])})\n"
    "open(sys.argv[2] + '/metrics.jsonl', 'w').write(row)\n"
)
TWO = """name: pipe
launch: {backend: local}
stages:
  a:
    command: [python, train.py, "{x}", "{log_path}"]
    grid: {x: [1, 2]}
    metric: {name: loss, goal: minimize}
  b:
    from: {stage: a, take: each}
    command: [python, train.py, "{x}", "{log_path}"]
    base: {par: "${a.log_path}"}
    grid: {x: [3]}
    metric: {name: loss, goal: minimize}
""".replace("python", sys.executable)  # the PATH may have no `python`


def test_a_pipeline_has_a_report_in_markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    Path("pipe.yaml").write_text(TWO)
    assert main(["launch", "pipe.yaml", "--wait"]) == 0
    assert main(["analyze", "pipe"]) == 0
    text = Path("sweeps/pipe/report/report.md").read_text()
    assert "[Report of a](a/report.md)" in text and Path("sweeps/pipe/report/a/report.md").exists()
    assert text.count(", then b ") == 2
