"""The verbs that read records, by their command lines."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import written
from support.verbs import ask

from sweeper.cli import main
from sweeper.commands.show import facts


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    folder = tmp_path / "root"
    monkeypatch.setenv("SWEEPER_ROOT", str(folder))
    written.three_runs(folder)
    return folder


@pytest.mark.usefixtures("root")
def test_ls_takes_selectors(capsys):
    def names(*arguments: str) -> list[str]:
        return [run["name"] for run in ask(capsys, "ls", *arguments)["runs"]]

    every = ["lr=1,seed=0", "lr=2,seed=0", "lr=3,seed=0"]
    assert names() == names("s") == names("s/*") == names("lr=*") == every
    assert names("s/lr=2") == names("lr=2") == names("--where", "lr = 2") == [every[1]]
    assert names("--state", "failed") == [every[2]]
    assert names("lr=1,seed=0", "s/lr=3") == [every[0], every[2]]
    assert names("lr=1", "--state", "failed") == []
    listed = ask(capsys, "ls", "lr=2", "--metric", "x", "--metric", "test/nll")["runs"][0]
    assert (listed["value"], listed["metrics"]) == (2.0, {"x": None, "test/nll": 2.0})
    assert main(["ls", "nothing"]) == 5 and main(["ls", "--where", "lr ="]) == 2
    assert "lr=1,seed=0" in (main(["ls"]), capsys.readouterr().out)[1]


def test_nearby_values_are_printed_with_enough_digits(tmp_path, capsys):
    rates = [0.00012345, 0.00012346]
    sweep = written.Written(tmp_path, "s", {"lr": rates})
    for rate in rates:
        sweep.run({"lr": rate}, 0, "bad\n", "failed", reason="oom")
    sweep.save()
    assert main(["ls", "s", "--by", "lr", "--root", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{rate} " in printed and f"lr={rate}: oom" in printed for rate in rates)


def scored(root: Path) -> None:
    """Write a sweep of two models and two ranks with the scores of two checkpoints."""
    sweep = written.Written(root, "m", {"model": ["a", "b"], "rank": [4, 8]})
    for model, rank in ((model, rank) for model in ("a", "b") for rank in (8, 4)):
        for seed in (0, 1):
            score = rank / 10 + seed / 20
            rows = [
                {"step": 0, "test/nll": 9.0, "eval/gsm8k/score": 0.1, "eval/gsm8k/num_items": 5},
                {"step": 10, "test/nll": 1 + rank + seed, "eval/gsm8k/score": score},
            ]
            items = {"name": "items", "batch": 0}  # of an evaluation during training
            checkpoint = {"name": "000010", "batch": 10, "sampler_path": "tinker://x"}
            sweep.run({"model": model, "rank": rank}, seed, rows, checkpoints=[items, checkpoint])
    sweep.save()


def test_ls_by_several_keys_has_the_best_cell_of_each(tmp_path, capsys):
    scored(tmp_path)
    table = ask(capsys, "ls", "m", "--by", "model,rank", "--root", str(tmp_path))
    assert [(row["value"], row["states"]["m"], row["best"]["value"]) for row in table["rows"]] == [
        ([model, rank], {"succeeded": 2}, rank + 1.5) for model in ("a", "b") for rank in (8, 4)
    ]
    [a, b] = ask(capsys, "ls", "m", "--by", "model", "--root", str(tmp_path))["rows"]
    assert (a["value"], a["best"]) == ("a", {"cell": "model=a,rank=4", "value": 5.5, "runs": 2})
    assert b["best"]["cell"] == "model=b,rank=4"
    assert main(["ls", "m", "--by", "model,rnk", "--root", str(tmp_path)]) == 5
    assert "did you mean 'rank'?" in capsys.readouterr().err
    assert main(["ls", "m", "--by", "model,model", "--root", str(tmp_path)]) == 2


def test_ls_by_checkpoint_and_suite_has_the_scores(tmp_path, capsys):
    scored(tmp_path)
    table = ask(capsys, "ls", str(tmp_path / "m"), "--by", "checkpoint,suite")
    assert (table["by"], table["columns"]) == ("checkpoint,suite", ["gsm8k"])
    assert [row["value"] for row in table["rows"]] == ["step 0", "000010"] * 8
    assert table["rows"][0]["run"] == "model=a,rank=8,seed=0"
    assert table["rows"][0]["scores"]["gsm8k"] == {
        **{"score": 0.1, "runs": 1, "items": 5, "errors": 0}
    }
    sweep = written.Written(tmp_path, "e", {"rank": [4]})  # of the recipe eval
    rows = [{"step": step, "eval/gsm8k/score": step / 10} for step in (1, 2)]
    items = {"name": "items", "batch": 0, "parent_path": "tinker://x/sampler_weights/000010"}
    sweep.run({"rank": 4}, 0, rows, checkpoints=[items])
    sweep.save()
    [row] = ask(capsys, "ls", "e", "--by", "checkpoint,suite", "--root", str(tmp_path))["rows"]
    assert (row["value"], row["scores"]["gsm8k"]["score"]) == ("000010", 0.2)
    sweep = written.Written(tmp_path, "t", {"rank": [4]})  # training that saved no weights
    started = {"name": "suites", "batch": 0, "parent_path": "tinker://x/weights/000010"}
    sweep.run({"rank": 4}, 0, rows, checkpoints=[started])
    sweep.save()
    rows = ask(capsys, "ls", "t", "--by", "checkpoint,suite", "--root", str(tmp_path))["rows"]
    assert [row["value"] for row in rows] == ["step 1", "step 2"]
    table = ask(capsys, "ls", "m", "--by", "model,rank,suite", "--root", str(tmp_path))
    assert [(row["value"], row["scores"]["gsm8k"]["score"]) for row in table["rows"]] == [
        ([model, rank], pytest.approx(rank / 10 + 0.025)) for model in ("a", "b") for rank in (8, 4)
    ]


@pytest.mark.usefixtures("root")
def test_show_has_everything(capsys):
    answer = ask(capsys, "show", "s/lr=2")
    assert answer["run"]["config"] == {"lr": 2, "seed": 0}
    assert answer["attempts"][0]["events"] == ["intent", "submitted", "claimed", "succeeded"]
    assert answer["last_metrics"]["test/nll"] == {"step": 1, "value": 2.0}
    assert answer["checkpoints"][0]["name"] == "final"
    assert any(file["path"].endswith("metrics.jsonl") for file in answer["files"])
    assert ask(capsys, "show", "s/lr=3")["skipped"]["malformed lines"] == 1
    assert main(["show", "s/lr=3"]) == 0
    shown = capsys.readouterr().out
    assert (
        "oom" in shown and "1 malformed line of the run's metrics files could not be read" in shown
    )


def test_printed_configuration_values_work_as_conditions(root, capsys):
    """Nested values work as well, with the printed keys and values."""
    sweep = written.Written(root, "nested", {"a": [1, 2]})
    kinds: dict[str, list[Any]] = {
        "batch_size": [8, 16], "rate": [1.23456789e-4, 3e-05], "none": [None, 1],
        "name": ["add", "copy it, (twice)"], "shuffle": [True, False],
        "deep": [{"er": 1}, {"er": 2.5}],
    }  # fmt: skip
    for n in range(2):
        built = {key: values[n] for key, values in kinds.items()}
        sweep.run({"a": n}, 0, config={"dataset_builder": built, "lr": 1.23451e-4 + n * 3e-9})
    sweep.save()
    for name in ("a=0,seed=0", "a=1,seed=0"):
        assert main(["show", f"nested/{name}"]) == 0
        shown = capsys.readouterr().out.partition("\nconfiguration\n")[2].partition("\n\n")[0]
        rows = [line.split(None, 1) for line in shown.splitlines()[2:]]
        assert len(rows) == 3 + len(kinds)
        for key, value in rows:
            quoted = f"'{value.strip()}'" if "(" in value else value.strip()
            matches = ask(capsys, "ls", "nested", "--where", f"{key}={quoted}")["runs"]
            assert name in [run["name"] for run in matches], (key, value)
            assert len(matches) == (2 if key == "seed" else 1), (key, value)
    assert main(["compare", "nested"]) == 0
    assert re.search(r"^lr +0.000123451 +0.000123454$", capsys.readouterr().out, re.MULTILINE)


def test_false_values_are_facts():
    recorded = {"git": {"dirty": False, "commit": None}, "live": False, "patches": [], "n": 0}
    assert dict(facts(recorded)) == {"git.dirty": "False", "live": "False", "n": "0"}


@pytest.mark.usefixtures("root")
def test_an_unrecorded_metric_gets_a_suggestion(capsys):
    assert main(["ls", "--metric", "test/nl"]) == 5
    assert capsys.readouterr().err == (
        "sweeper: no run has recorded 'test/nl'; did you mean 'test/nll'?\n"
    )
    assert main(["ls", "lr=3", "--metric", "test/nl"]) == 0  # this run has recorded no metrics


@pytest.mark.usefixtures("root")
def test_diff_shows_what_differs(capsys):
    assert [run["name"] for run in ask(capsys, "compare", "lr=2", "lr=1")["runs"]] == [
        "lr=2,seed=0",
        "lr=1,seed=0",
    ]
    comparison = ask(capsys, "compare", "s/lr=1", "s/lr=2")
    assert comparison["config"] == {"lr": [1, 2]}
    assert comparison["last_metrics"] == {"test/nll": [1.0, 2.0]}
    assert main(["compare", "s/lr=1"]) == 2
    capsys.readouterr()
    assert main(["compare", "s"]) == 0
    assert "oom" in capsys.readouterr().out
    for typed in (("lr=2", "lr=1"), ("s/lr=3", "lr=1", "lr=2"), ("lr=1", "lr=2")):
        assert main(["compare", *typed]) == 0
        heads = re.findall(r"^key +(.*)$", capsys.readouterr().out, re.MULTILINE)
        names = [f"s/{name.removeprefix('s/')},seed=0" for name in typed]
        assert len(heads) == (3 if "s/lr=3" in typed else 2)
        assert [head.split() for head in heads] == [names] * len(heads)


@pytest.mark.usefixtures("root")
def test_sql_answers(capsys):
    query = (
        'select name, min("test/nll") n from runs join metrics using (run) group by 1 order by 1'
    )
    answer = ask(capsys, "sql", query, "--where", "lr < 3")
    assert answer["columns"] == ["name", "n"]
    assert answer["rows"] == [["lr=1,seed=0", 1.0], ["lr=2,seed=0", 2.0]]
    assert ask(capsys, "sql", "select count(*) from runs", "--run", "lr=1")["rows"] == [[1]]
    assert ask(capsys, "sql", "select [1, 2] l, date '2026-01-02' d, 'nan'::double n")["rows"] == [
        [[1, 2], "2026-01-02", "NaN"]
    ]
    assert main(["sql", "drop table runs"]) == 2


@pytest.mark.usefixtures("root")
def test_a_query_prints_only_its_answer():
    """In a separate process, so that output of DuckDB at exit counts as well."""
    command = [sys.executable, "-m", "sweeper", "sql", "select count(*) n from runs"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["n", "─", "3"] and done.stderr == ""


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("verb", ["show"])
def test_a_verb_for_one_run_lists_the_matching_runs(capsys, verb):
    assert main([verb, "s"]) == 2
    message = "'s' matches 3 runs (s/lr=1,seed=0, s/lr=2,seed=0, s/lr=3,seed=0): name one of them"
    assert message in capsys.readouterr().err
    assert main([verb, "none"]) == 5


@pytest.mark.parametrize(
    ("record", "step"),
    [
        ({"batch": 60}, "60"),
        ({"batch": 60, "epoch": 0}, "60"),
        ({"batch": 3, "epoch": 1}, "epoch 1, 3"),
        ({"batch": 0, "epoch": 1}, "after 1 epoch"),  # the last checkpoint of tinker-cookbook
        ({"batch": 0, "epoch": 2}, "after 2 epochs"),
    ],
)
def test_where_in_the_training_a_checkpoint_was_made(root, capsys, record, step):
    sweep = written.Written(root, "sl", {"lr": [1]})
    sweep.run({"lr": 1}, 0, [{"step": 0}], checkpoints=[{"name": "final", **record}])
    sweep.save()
    assert main(["show", "sl"]) == 0
    shown = capsys.readouterr().out.partition("\ncheckpoints\n")[2].splitlines()
    assert re.split(r"\s{3,}", shown[2])[:2] == ["final", step]


def test_status_has_a_line_for_a_sweep_and_for_a_run(root, capsys):
    """Even if its command, and the last message of a run, are long."""
    command = ["python", "train.py", *(f"--option{n} {{value{n}}}\n" for n in range(40))]
    recipe = {"reference": " ".join(command), "kind": "command", "command": command}
    sweep = written.Written(root, "long", {"lr": [1]}, recipe=recipe)
    sweep.run({"lr": 1}, 0, [], "failed", reason="error", detail="no " * 100)
    sweep.save()
    assert main(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and max(map(len, lines)) <= 120
    assert "python train.py --option0" in "\n".join(lines) and "..." in "\n".join(lines)
    assert main(["status", "long"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("lr=1,seed=0") and lines[2].endswith("...")
    assert not lines[3] and len(lines[2]) <= 160


def test_tables_are_exported_as_csv_and_parquet(root, capsys):
    out = root.parent / "out.csv"
    (root / "alone").mkdir()
    (root / "alone" / "metrics.jsonl").write_text(
        '{"step": 0, "test/nll": NaN}\n{"step": 1, "y": 2}\n'
    )
    assert main(["export", "./alone", "--format", "csv", "--out", str(out)]) == 0
    head, *rows = out.read_text().splitlines()
    assert head == '"run","sweep","root","step","test/nll","y"'
    assert [row.split(",")[3:] for row in rows] == [["0", "nan", ""], ["1", "", "2"]]
    parquet = root.parent / "out.parquet"
    assert main(["export", "--format", "parquet", "--table", "runs", "--out", str(parquet)]) == 0
    import pandas

    assert list(pandas.read_parquet(parquet)["lr"].dropna()) == [1, 2, 3]
    capsys.readouterr()
    assert main(["export", "--format", "csv", "--out", str(root / "no" / "x")]) == 6
    assert sorted(path.name for path in root.parent.iterdir() if ".tmp" in path.name) == []


def test_exported_csv_contains_no_formulas(tmp_path, monkeypatch):
    """A spreadsheet that opens the export must not execute the text of a metric or setting."""
    import csv

    formulas = ["=cmd|'/C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1"]
    innocent = ["plain", "1e-4", "-0.5", "+7", "a=b", ""]
    sweep = written.Written(tmp_path / "root", "s", {"lr": [1]})
    rows = [{"step": i, "=key": text} for i, text in enumerate([*formulas, *innocent])]
    sweep.run({"lr": 1}, 0, rows)
    sweep.save()
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    out = tmp_path / "out.csv"
    export = ["export", "s", "--root", str(tmp_path / "root"), "--format", "csv", "--out", str(out)]

    def read(key: str) -> list[str]:
        with open(out, newline="") as file:
            return [row[key] for row in csv.DictReader(file)]

    assert main(export) == 0
    assert read("'=key") == [f"'{text}" for text in formulas] + innocent
    assert main([*export, "--raw"]) == 0
    assert read("=key") == formulas + innocent


def test_gc_removes_unneeded_files_only_with_delete(root, capsys):
    sweep = written.Written(root, "again")
    run = sweep.run({"a": 1}, 0, [{"step": 0}], "preempted")
    sweep.run({"a": 1}, 0, [{"step": 0}], attempt=2)
    sweep.document["provenance"]["snapshot"] = "a" * 32
    sweep.save()
    for attempt, iteration in ((1, 0), (1, 1), (2, 1)):
        inner = root / "again" / "runs" / f"{run}.{attempt}" / f"iteration_{iteration:06}"
        inner.mkdir()
        for name in ("train_rollout_summaries.jsonl", "train_logtree.json"):
            (inner / name).write_text("{}\n")
    home = root.parent / "home"
    used, unused = (home / "snapshots" / f"{letter * 32}-0123abcd" for letter in "ab")
    gone = home / "cache" / "v1" / "x"
    for folder in (used, unused, gone):
        folder.mkdir(parents=True)
        (folder / "root").write_text("/no/such/root")
    dead, alive = (root / "s" / f".tmp-{pid}-0a0b0c0d" for pid in (2**22 + 1, os.getpid()))
    before = time.time() - 7200
    for path in (dead, alive):
        path.write_text("half")
        os.utime(path, (before, before))
    plain = [item["path"] for item in ask(capsys, "store", "gc", "--days", "-1")["items"]]
    assert {str(gone), str(unused), str(dead)} <= set(plain) and str(used) not in plain
    listed = [str(item["path"]) for item in ask(capsys, "store", "gc")["items"]]
    assert str(unused) not in listed and str(alive) not in listed and str(dead) in listed
    assert main(["store", "gc", "--delete", "--attempts"]) == 0
    assert not dead.exists() and alive.exists() and unused.exists()
    assert gone.exists()  # its root may be on a disk that is not mounted
    left = sorted(
        str(p.relative_to(root / "again" / "runs")) for p in root.glob("again/runs/*/*/*")
    )
    files = ("train_logtree.json", "train_rollout_summaries.jsonl")
    places = ((1, 0), (2, 1))
    assert left == [f"{run}.{a}/iteration_{i:06}/{name}" for a, i in places for name in files]
