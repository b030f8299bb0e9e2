"""tinker-cookbook's readers on our recipes' files, and ours on the files of its EvalStore."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sweeper.cli import main
from sweeper.results.registry import Registry

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
COOKBOOK = ROOT / ".venv-cookbook" / "bin" / "python"
STEPS, GROUPS, SIZE, HELD_OUT, LOGGED = 3, 4, 5, 6, 2


@pytest.fixture(scope="module")
def folder(recipes, tmp_path_factory):
    """Return a folder with a run of each recipe."""
    if not COOKBOOK.exists():
        pytest.skip("tinker-cookbook is not installed: `make cookbook` gets it")
    root = tmp_path_factory.mktemp("runs")
    common = {"max_steps": STEPS, "test_size": HELD_OUT, "eval_every": 2, "save_every": 2}
    recipes.succeed("sft", root / "sft", **common)
    rl = {"groups_per_batch": GROUPS, "group_size": SIZE, "num_groups_to_log": LOGGED}
    rl |= {"max_tokens": 8, "load_checkpoint_path": root / "sft"}
    recipes.succeed("rl", root / "rl", **common, **rl)
    return root


@pytest.fixture(scope="module")
def runs(folder):
    """Return what tinker-cookbook's readers read from the runs."""
    script = ROOT / "tests" / "support" / "read_with_cookbook.py"
    done = subprocess.run(
        [COOKBOOK, script, folder],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_both_runs_are_found(runs):
    assert set(runs) == {"sft", "rl"}
    assert runs["rl"]["training_type"] == "rl"
    assert [runs[name]["iteration_count"] for name in ("sft", "rl")] == [0, STEPS + 1]


@pytest.mark.parametrize("name", ["sft", "rl"])
def test_metrics_checkpoints_and_configuration_are_read_whole(runs, recipes, folder, name):
    run = runs[name]
    assert run["config"] == json.loads((folder / name / "config.json").read_text())
    assert run["metrics"] == recipes.read(folder / name / "metrics.jsonl")
    assert run["checkpoints"] == recipes.read(folder / name / "checkpoints.jsonl")
    assert [record["batch"] for record in run["checkpoints"]] == [2, STEPS]


def test_iterations_are_distinguished(runs):
    iterations = [
        (info["has_train_rollouts"], info["has_train_logtree"], info["eval_labels"])
        for info in runs["rl"]["iterations"]
    ]
    assert iterations == [(True, True, ["test"]), (True, True, []), (True, True, ["test"]),
                    (False, False, ["test"])]  # fmt: skip


def test_summaries_are_what_cookbook_s_writer_makes_of_these_episodes(runs):
    run = runs["rl"]
    sizes = {key: len(records) for key, records in run["rollouts"].items()}
    train = {f"{step}/train": GROUPS * SIZE for step in range(STEPS)}
    assert sizes == train | {f"{step}/eval_test": HELD_OUT for step in (0, 2, STEPS)}
    assert run["rollouts"] == run["rewritten"]
    splits = {key: records[0]["split"] for key, records in run["rollouts"].items()}
    assert {splits["0/train"], splits["0/eval_test"]} == {"train", "eval/test"}


def test_transcripts_are_what_cookbook_s_logtree_draws_of_these_episodes(runs):
    run = runs["rl"]
    assert set(run["logtrees"]) == set(run["rollouts"])
    for key, tree in run["logtrees"].items():
        drawn = run["redrawn"][key]
        for each in (tree, drawn):
            assert each.pop("started_at")
            [subtitle] = [n for n in each["root"]["children"] if n["tag"] == "div"]
            assert subtitle["attrs"] == {"class": "lt-subtitle"}
            each["root"]["children"].remove(subtitle)
        assert tree == drawn
        groups = [n for n in tree["root"]["children"] if n["tag"] == "section"]
        assert len(groups) == LOGGED


WRITER = ROOT / "tests" / "support" / "write_eval_store.py"
TABLE = {"base": (0, 1), "000010": (1, 2), "final": (2, 3)}
"""Right answers out of four for gsm8k and ifeval, by checkpoint."""


@pytest.fixture(scope="module")
def eval_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with evaluations of three checkpoints."""
    if not COOKBOOK.exists():
        pytest.skip("tinker-cookbook is not installed: `make cookbook` gets it")
    folder = tmp_path_factory.mktemp("evals")
    subprocess.run([COOKBOOK, WRITER, f"log_path={folder}"], check=True, stdin=subprocess.DEVNULL)
    return folder


def check_store(root: str, capsys: pytest.CaptureFixture[str], out: Path) -> None:
    """Assert that runs, checkpoints, scores and items of the store are read completely."""
    registry = Registry(root, cache=False)
    records = registry.records()
    assert {record["state"] for record in records} == {"succeeded"}
    assert {record["config"]["checkpoint_name"] for record in records} == {*TABLE}
    checkpoints = {row["name"]: row["sampler_path"] for row in registry.checkpoint_rows()}
    assert checkpoints == {
        name: f"tinker://run-0/sampler_weights/{name}" for name in ("000010", "final")
    }
    scores = registry.sql_rows("select checkpoint, suite, score, items, errors from scores")[1]
    assert sorted(scores) == sorted(
        (name, suite, right / 4, 4, 0)
        for name, both in TABLE.items()
        for suite, right in zip(("gsm8k", "ifeval"), both, strict=True)
    )
    items = registry.item_rows()
    assert len(items) == 3 * 2 * 4
    assert sum(row["score"] or 0 for row in items) == sum(map(sum, TABLE.values()))
    assert {(row["prompt"], row["text"], row["answer"]) for row in items} == {
        (f"What is {n}?", f"It is {n}.", str(n)) for n in range(4)
    }
    assert main(["ls", root, "--by", "checkpoint,suite", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["columns"] == ["gsm8k", "ifeval"]
    assert [
        (row["value"], *(row["scores"][suite]["score"] * 4 for suite in table["columns"]))
        for row in table["rows"]
    ] == [(name, *both) for name, both in TABLE.items()]
    judged = ["--metric", "eval/gsm8k/score", "--goal", "maximize", "--no-pictures", "--json"]
    assert main(["analyze", root, *judged, "--out", str(out)]) == 0
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert verdict["checkpoint"]["path"] == checkpoints["final"]


def test_a_store_is_read_whole(
    eval_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_store(str(eval_store), capsys, tmp_path / "report")


def test_a_store_on_s3_is_read_whole(
    eval_store: Path, s3_root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import fsspec

    files: Any = fsspec.filesystem("s3")
    files.put(f"{eval_store}/", f"{s3_root}/", recursive=True)
    check_store(s3_root, capsys, tmp_path / "report")
