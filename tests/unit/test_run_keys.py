"""Keys of a single run are not settings: names, places, times and seeds."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import written

from sweeper import analysis
from sweeper.analysis.reading.run_keys import own_keys
from sweeper.cli import main

SEEDS = ("seed", "random_seed", "rng_seed", "SEED", "data_seed", "train.seed", "randomSeed")


def written_runs(root: Path, configs: list[dict[str, Any]]) -> str:
    """Write a folder of runs without a grid, whose losses are lr + seed / 100."""
    for number, config in enumerate(configs):
        folder = root / "logs" / f"{number:02d}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        loss = config.get("lr", 1) + (number % 3) / 100
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": loss}) + "\n")
    return str(root / "logs")


def cells(report: Any) -> dict[str, int]:
    return {row["cell"]: row["n"] for row in report.document["cells"]}


OWN = ["run_name", "output_dir", "exp_name", "timestamp", "created_at", "job_id", "hostname"]


@pytest.mark.parametrize(
    "key", [*OWN, "run_id", "wandb_name", "session_name", "logging.output_dir"]
)
def test_keys_that_differ_in_each_run_make_no_cells(tmp_path: Path, key: str):
    runs = [
        {"lr": lr, "seed": seed, key: f"{key}-{lr}-{seed}"} for lr in (1, 2) for seed in range(3)
    ]
    folder = written_runs(tmp_path, runs)
    report = analysis.analyze(str(tmp_path), folder, "loss", pictures=False)
    assert cells(report) == {"lr=1": 3, "lr=2": 3}  # named by their settings, not by a run
    assert report.document["verdict"]["kind"] == "clear"
    (finding,) = [f["text"] for f in report.document["findings"] if f["kind"] == "own_keys"]
    assert f"{key}: each run has its own" in finding and "--ignore KEY" in finding
    assert finding in Path(report.html_path).read_text()


@pytest.mark.parametrize("key", SEEDS)
def test_a_seed_under_another_name_makes_replicates(tmp_path: Path, key: str):
    folder = written_runs(tmp_path, [{"lr": lr, key: s} for lr in (1, 2) for s in range(3)])
    report = analysis.analyze(str(tmp_path), folder, "loss", pictures=False)
    assert cells(report) == {"lr=1": 3, "lr=2": 3}
    assert sorted(run["seed"] for run in report.document["runs"]) == [0, 0, 1, 1, 2, 2]


def test_a_name_shared_by_groups_of_runs_is_a_setting():
    runs = [{"exp_name": name, "seed": seed} for name in ("old", "new") for seed in range(3)]
    assert own_keys(runs).left_out == ()


def test_a_seed_without_integers_is_a_setting():
    assert own_keys([{"seed": "a"}, {"seed": "b"}]).seeds == ()
    assert own_keys([{"proceed": 1}, {"proceed": 2}]).seeds == ()


def test_ignore_and_seed_options_name_other_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    runs = [{"lr": lr, "luck": s, "ckpt": f"{lr}{s}.pt"} for lr in (1, 2) for s in range(3)]
    folder = written_runs(tmp_path, runs)
    report = analysis.analyze(str(tmp_path), folder, "loss", pictures=False)
    assert len(cells(report)) == 6 and "--ignore ckpt" in " ".join(report.verdict.split())
    words = ["analyze", folder, "--metric", "loss", "--no-pictures"]
    assert main([*words, "--ignore", "ckpt", "--seed", "luck"]) == 0
    assert "clear winner" in capsys.readouterr().out
    document = json.loads((tmp_path / "logs" / "report" / "report.json").read_text())
    assert {row["cell"] for row in document["cells"]} == {"lr=1", "lr=2"}
    page = (tmp_path / "logs" / "report" / "report.html").read_text()
    assert "--ignore ckpt --seed luck" in page  # the command that makes the same report
    assert main([*words, "--ignore", "chkpt"]) == 2
    assert "--ignore chkpt: no configuration has this key" in capsys.readouterr().err


def test_ignore_is_refused_for_a_sweep_with_a_grid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    written.measured(tmp_path, [({"lr": 1}, [0.5, 0.6])])
    assert main(["analyze", "demo", "--root", str(tmp_path), "--ignore", "lr"]) == 2
    assert "demo is a sweep, and its grid already defines its cells" in capsys.readouterr().err


def test_settings_that_look_alike_make_two_cells(tmp_path: Path):
    folder = written_runs(
        tmp_path, [{"lr": 1, "pack": p, "seed": s} for p in (True, "true") for s in (0, 1)]
    )
    assert len(cells(analysis.analyze(str(tmp_path), folder, "loss", pictures=False))) == 2


def test_texts_and_copies_of_axes_are_not_settings(tmp_path: Path):
    grid = (
        "recipe: sft\nbase: {title: '${lr} at ${rank}', wandb_name: 'lr ${lr}'}\n"
        "grid: {lr: [1, 2], rank: [8]}\nseeds: 2\n"
    )
    sweep = written.Written(tmp_path, axes={"lr": [1, 2], "model": ["a", "b"]}, grid=grid)
    for lr, model in ((1, "a"), (2, "b")):
        for seed in (0, 1):
            names = {"title": f"{lr} at 8", "wandb_name": f"lr {lr}", "tokenizer": model}
            rows = [{"step": 1, "test/nll": lr + seed / 10}]
            sweep.run({"lr": lr, "model": model}, seed, rows, config=names)
    sweep.save()
    report = analysis.analyze(str(tmp_path), "demo", pictures=False)
    assert report.document["cells"][0]["settings"] == {"lr": 1, "model": "a"}
    assert "undeclared" not in {f["kind"] for f in report.document["findings"]}


def test_a_name_that_alone_distinguishes_cells_is_a_setting(tmp_path: Path):
    cells = [({"exp_name": name}, [loss, loss + 0.1]) for name, loss in (("a", 1), ("b", 2))]
    written.measured(tmp_path, cells, axes=())
    report = analysis.analyze(str(tmp_path), "demo", pictures=False)
    assert report.document["cells"][0]["settings"] == {"exp_name": "a"}
