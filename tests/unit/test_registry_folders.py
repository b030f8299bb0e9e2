"""Plain folders of runs: where they are found, and which folder a name means."""

import json
import os
from pathlib import Path

import pytest
from support import written

from sweeper.cli import main
from sweeper.results.registry import Registry


@pytest.fixture(autouse=True)
def here(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with an empty home and no default root."""
    monkeypatch.delenv("SWEEPER_ROOT", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def runs_in(folder: Path, loss: float, *names: str) -> None:
    for number, name in enumerate(names or ("a", "b")):
        (folder / name).mkdir(parents=True)
        line = json.dumps({"step": 0, "loss": loss + number})
        (folder / name / "metrics.jsonl").write_text(line + "\n")
        (folder / name / "config.json").write_text(json.dumps({"lr": number}))


def names_in(root: Path) -> list[str]:
    return [f"{run.sweep}/{run.name}" for run in Registry(str(root), cache=False).handles()]


def test_links_below_a_root_are_followed_once(here: Path, tmp_path: Path):
    root, disk = here / "root", tmp_path / "disk"
    runs_in(root / "own", 1.0, "a")
    runs_in(disk / "exp", 2.0, "x", "y")
    (root / "linked").symlink_to(disk / "exp")  # a folder of runs
    (root / "one").symlink_to(disk / "exp" / "x")  # a run that `linked` has already
    (root / "again").symlink_to(root / "own")  # inside the root: found there
    (root / "own" / "up").symlink_to(root)
    (root / "own" / "further").symlink_to(here)  # above the root
    (disk / "exp" / "back").symlink_to(disk)  # in a circle, beyond the link
    (disk / "exp" / "home").symlink_to(root)
    (root / "broken").symlink_to(tmp_path / "nowhere")
    assert names_in(root) == ["linked/x", "linked/y", "own/a"]
    registry = Registry(str(root), cache=False)
    assert sorted(registry.metrics()["loss"]) == [1.0, 2.0, 3.0]
    assert registry.sql_rows("select count(*) from metrics")[1] == [(3,)]


def test_reading_verbs_read_a_linked_folder(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    runs_in(tmp_path / "disk", 2.0)
    (here / "root").mkdir()
    (here / "root" / "exp").symlink_to(tmp_path / "disk")
    of_root = ["--root", "root"]
    assert main(["ls", *of_root, "--json"]) == 0
    assert [run["sweep"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["exp"] * 2
    assert main(["export", *of_root, "--format", "csv", "--out", "x.csv"]) == 0
    assert len((here / "x.csv").read_text().splitlines()) == 3
    judged = ["--metric", "loss", "--out", "out", "--no-pictures", "--json"]
    capsys.readouterr()
    assert main(["analyze", "exp", *of_root, *judged]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2


@pytest.mark.parametrize("name", ["exp", "exp/"])
def test_a_folder_of_the_root_precedes_one_of_the_current_folder(
    here: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
):
    root = tmp_path / "R"
    runs_in(root / "exp", 5.0)
    runs_in(here / "exp", 1.0)
    judged = ["--metric", "loss", "--goal", "minimize", "--json"]
    assert main(["analyze", name, "--root", str(root), "--no-pictures", *judged]) == 0
    assert {run["value"] for run in json.loads(capsys.readouterr().out)["runs"]} == {5.0, 6.0}
    assert (root / "exp" / "report").is_dir() and not (here / "exp" / "report").exists()
    assert main(["compare", "exp/a", "exp/b", "--root", str(root), *judged]) == 0
    assert json.loads(capsys.readouterr().out)["cells"][0]["mean_a"] == 5.0
    assert main(["analyze", "./exp", "--root", str(root), "--no-pictures", *judged]) == 0
    assert {run["value"] for run in json.loads(capsys.readouterr().out)["runs"]} == {1.0, 2.0}


def test_a_dot_means_the_given_root_or_the_current_folder(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    runs_in(tmp_path / "R", 5.0)
    runs_in(here, 1.0)
    judged = ["--metric", "loss", "--out", "out", "--no-pictures", "--json"]
    assert main(["analyze", ".", "--root", str(tmp_path / "R"), *judged]) == 0
    assert {run["value"] for run in json.loads(capsys.readouterr().out)["runs"]} == {5.0, 6.0}
    assert main(["analyze", ".", *judged]) == 0
    assert {run["value"] for run in json.loads(capsys.readouterr().out)["runs"]} == {1.0, 2.0}


def test_a_sweep_of_the_root_precedes_one_of_the_current_folder(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for folder, value in ((tmp_path / "R", 5.0), (here, 1.0)):
        sweep = written.Written(folder, "exp", {"x": [1, 2]})
        for x in (1, 2):
            sweep.run({"x": x}, 0, [{"step": 0, "test/nll": value + x}])
        sweep.save()
    options = ["--out", "out", "--no-pictures", "--json"]
    assert main(["analyze", "exp", "--root", str(tmp_path / "R"), *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {run["value"] for run in document["runs"]} == {6.0, 7.0}
    assert main(["analyze", os.path.join(str(here), "exp"), *options]) == 0
    assert {run["value"] for run in json.loads(capsys.readouterr().out)["runs"]} == {2.0, 3.0}


def eval_store(folder: Path) -> None:
    """Write a store with two evaluations, in the files of tinker-cookbook's EvalStore."""
    for run, reward in (("step10_a", 0.0), ("step20_b", 1.0)):
        place = folder / "runs" / run
        (place / "gsm8k").mkdir(parents=True)
        facts = {
            **{"run_id": run, "model_name": "m", "checkpoint_name": run, "checkpoint_path": None},
            **{"benchmarks": ["gsm8k"], "timestamp": run, "config": {"samples": 1}, "scores": {}},
        }
        (place / "metadata.json").write_text(json.dumps(facts))
        (place / "gsm8k" / "result.json").write_text(json.dumps({"name": "gsm8k", "score": reward}))
        answer = {"idx": 0, "example_id": "q0", "reward": reward, "turns": []}
        (place / "gsm8k" / "trajectories.jsonl").write_text(json.dumps(answer) + "\n")
        with open(folder / "runs.jsonl", "a", encoding="utf-8") as index:
            index.write(json.dumps({"run_id": run}) + "\n")


@pytest.mark.parametrize("below", ["", "evals"])
def test_evaluations_of_an_eval_store_are_runs_with_items(
    here: Path, below: str, capsys: pytest.CaptureFixture[str]
):
    eval_store(here / "root" / below)
    registry = Registry(str(here / "root"), cache=False)
    sweep = f"{below}/runs".lstrip("/")
    assert names_in(here / "root") == [f"{sweep}/step10_a", f"{sweep}/step20_b"]
    records = registry.records()
    assert [record["config"]["checkpoint_name"] for record in records] == ["step10_a", "step20_b"]
    query = "select name, score from items join runs using (run, sweep, root) order by 1"
    assert registry.sql_rows(query)[1] == [("step10_a", 0.0), ("step20_b", 1.0)]
    assert main(["rollouts", sweep, "--root", "root"]) == 0
    assert "2 of 2 answers" in capsys.readouterr().out


def test_checkpoints_of_several_training_runs_stay_apart(
    here: Path, capsys: pytest.CaptureFixture[str]
):
    """Also if a store gives them the same names, or names with the same step."""
    named = (("x_10", None), ("y_10", None), ("final", "tinker://a/f"), ("final", "tinker://b/f"))
    for number, (name, path) in enumerate(named):
        folder = here / "root" / "runs" / f"{number}"
        folder.mkdir(parents=True)
        facts = {"model_name": "m", "checkpoint_name": name, "checkpoint_path": path}
        facts |= {"benchmarks": ["q"], "timestamp": str(number), "scores": {"q": number / 4}}
        (folder / "metadata.json").write_text(json.dumps(facts))
    (here / "root" / "runs.jsonl").write_text("{}\n")
    assert main(["ls", "root", "--by", "checkpoint,suite", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["value"], row["scores"]["q"]["score"]) for row in rows] == [
        *(("x_10", 0.0), ("y_10", 0.25)),
        *(("final tinker://a/f", 0.5), ("final tinker://b/f", 0.75)),
    ]


def test_an_eval_store_within_a_run_belongs_to_the_run(here: Path):
    runs_in(here / "root", 1.0, "exp/a")
    eval_store(here / "root" / "exp" / "a" / "evals")
    assert names_in(here / "root") == ["exp/a"]
    assert len(Registry(str(here / "root"), cache=False).items()) == 1  # the last evaluation


@pytest.mark.parametrize("text", ["[1, 2]", '{"benchmarks": ['])
def test_other_metadata_files_are_not_evaluations(here: Path, text: str):
    runs_in(here / "root", 1.0, "exp/a")
    (here / "root" / "exp" / "a" / "metadata.json").write_text(text)
    registry = Registry(str(here / "root"), cache=False)
    assert [record["value"] for record in registry.records()] == [None]
    assert registry.problems == []


def test_a_stored_score_replaces_a_recorded_one_of_the_same_weights(here: Path):
    folder = here / "root" / "exp" / "a"
    place = folder / "evals" / "runs" / "one"
    (place / "q").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 5, "eval/q/score": 0.25}\n')
    addresses = {"state_path": "tinker://a/weights/5", "sampler_path": "tinker://a/sampler/5"}
    (folder / "checkpoints.jsonl").write_text(json.dumps({"name": "5", "batch": 5} | addresses))
    facts = {"model_name": "m", "checkpoint_path": addresses["state_path"], "benchmarks": ["q"]}
    facts |= {"timestamp": "1", "scores": {"q": 0.75}}
    (place / "metadata.json").write_text(json.dumps(facts))
    table = Registry(str(here / "root"), cache=False).scores()
    assert table["score"].tolist() == [0.75]


def test_an_eval_store_is_found_on_a_remote_store_too(monkeypatch: pytest.MonkeyPatch, here: Path):
    import fsspec

    eval_store(here / "store")
    runs_in(here / "store", 1.0, "exp/a")
    eval_store(here / "store" / "exp" / "a" / "evals")
    files = fsspec.filesystem("memory")
    for path in (here / "store").rglob("*"):
        if path.is_file():
            files.pipe(f"/bucket/{path.relative_to(here / 'store')}", path.read_bytes())
    runs = Registry("memory://bucket", cache=False).handles()
    names = ["exp/a", "runs/step10_a", "runs/step20_b"]
    assert sorted(f"{run.sweep}/{run.name}" for run in runs) == names
