"""SQL, rollouts, folders of other programs, and new rows, over files written by the tests."""

import csv
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from support import written

from sweeper.cli import main
from sweeper.errors import NotFound, StoreError, UsageError
from sweeper.results.registry import Registry
from sweeper.results.sql import mentions_all
from sweeper.store.local import LocalStore

ROWS: list[dict[str, Any]] = [
    {"step": 0, "loss": 2.0, "note": "a", "mixed": 1},
    {"step": 1, "loss": math.nan, "mixed": "two", "big": 2**60 + 1},
    {"step": 2, "LOSS": 9.0, "late": 1.0},
]


def summary(iteration: int, group: int, index: int, reward: float, **more: Any) -> dict[str, Any]:
    logs = {"question": f"q{group}", "response": f"answer {group}.{index}"}
    step = {"ob_len": 5, "ac_len": 10 * index, "reward": reward, "metrics": {"ok": index}}
    return {
        **{"split": "train", "iteration": iteration, "group_idx": group, "traj_idx": index},
        **{"tags": ["t"], "total_reward": reward, "final_reward": 0.0, "final_ob_len": 3},
        **{"steps": [step | {"logs": logs}], "trajectory_metrics": {}},
        **more,
    }


@pytest.fixture
def root(tmp_path: Path, home: Path) -> Path:
    """Write a sweep of two runs, the second with two attempts, and folders without a sweep."""
    folder = tmp_path / "root"
    sweep = written.Written(folder, "s", {"lr": [1, 2]}, metric={"name": "loss"})
    sweep.run({"lr": 1}, 0, ROWS)
    twice = sweep.run({"lr": 2}, 0, [{"step": 0, "loss": 5.0}], "preempted")
    sweep.run({"lr": 2}, 0, [{"step": 1, "loss": 4.0}], attempt=2)
    sweep.save()
    for attempt, iteration, reward in ((1, 0, 0.25), (1, 1, 0.5), (2, 1, 1.0)):
        inner = folder / "s" / "runs" / f"{twice}.{attempt}" / f"iteration_{iteration:06}"
        inner.mkdir()
        lines = [summary(iteration, g, i, reward + g) for g in range(2) for i in range(2)]
        (inner / "train_rollout_summaries.jsonl").write_text(written.dump(lines) + "torn")
    for name in ("other/deep/lr=1e-4", "alone", ".hidden/x", "s/deep/inside"):
        run = folder / name
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text(written.dump([{"step": 0, "loss": 7.0}]))
    (folder / "alone" / "config.json").write_text('{"lr": 3, "nested": {"a": 1}}')
    (folder / "alone" / "checkpoints.jsonl").write_text('{"name": "f", "final": true}\n')
    return folder


def test_sql_joins_runs_and_metrics(root: Path):
    query = 'select lr, min("loss") m from runs join metrics using (run) group by 1 order by 1'
    rows = [(1, 2.0), (2, 4.0), (3, 7.0), (None, 7.0)]
    assert Registry(str(root)).sql_rows(query) == (["lr", "m"], rows)
    assert list(Registry(str(root)).sql(query)["m"]) == [2.0, 4.0, 7.0, 7.0]


def test_sql_keeps_null_nan_and_texts_apart(root: Path):
    registry = Registry(str(root))
    query = 'select step, loss, mixed, "mixed.text", note, "LOSS_1", big from metrics where run = '
    run = registry.run("s/lr=1,seed=0").id
    rows = registry.sql_rows(f"{query} '{run}' order by step")[1]
    assert str(rows) == str(
        [
            (0, 2.0, 1.0, None, "a", None, None),
            (1, math.nan, None, "two", None, None, str(2**60 + 1)),
            (2, None, None, None, None, 9.0, None),
        ]
    )
    wide = registry.sql("select * from metrics")
    assert {"late", "loss", "LOSS_1", "note"} <= set(wide.columns) and len(wide) == 7


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from '/etc/passwd'",
        "select * from glob('/*')",
        "select content from read_text('/etc/hostname')",
        "copy (select 1) to '{out}'",
        "export database '{out}'",
        "attach '{out}'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "pragma enable_external_access",
        "create table t as select 1",
        "drop view runs",
        "insert into runs values (1)",
        "select 1; select 2",
        "call pragma_version()",
        "select * from root",
        "select getenv('HOME')",
        "select * from query('copy (select 1) to ''{out}''')",
        "select * from query('select * from duckdb_settings()')",
        "select * from query_table('pg_settings')",
        "select * from duckdb_settings()",
        "select * from Duckdb_Settings()",
        "select * from runs, lateral (select * from duckdb_settings())",
        "with x as (select * from duckdb_extensions()) select * from x",
        "select (select value from duckdb_settings() limit 1)",
        "select * from (with duckdb_databases as (select 1) select 1), duckdb_databases",
        "select * from pg_catalog.pg_settings",
        "select * from pg_settings",
        "select * from duckdb_secrets()",
        "select * from duckdb_variables()",
        "select current_setting('home_directory')",
        "select pg_catalog.current_setting('home_directory')",
        "select [current_setting(x) for x in ['threads']]",
        "select getvariable('x')",
        "show threads",
        "show databases",
        "summarize pg_settings",
        "select * from enable_logging()",
        "select * from json_execute_serialized_sql('{}')",
        "select * from parquet_schema('{out}')",
        "select * from test_all_types()",
        "explain select 1",
        "",
        "selekt 1",
        "select '\udcff'",
        "select nothing from runs",
    ],
)
def test_sql_cannot_reach_files_or_settings(root: Path, tmp_path: Path, query: str):
    out = tmp_path / "out"
    with pytest.raises(UsageError, match="sql: "):
        Registry(str(root)).sql_rows(query.replace("{out}", str(out)))
    assert not out.exists()


def test_sql_accepts_any_query_of_its_tables(root: Path):
    registry = Registry(str(root))
    for query in (
        "with best as (select min(lr) m from runs) select m from best",
        "select x from (select unnest([1]) x), range(1) r",
        "with recursive r as (select 1 a union all select a + 1 from r where a < 3) from r",
        "from main.runs union all by name (from metrics)",
        "describe runs",
        "summarize runs",
        "select * from runs positional join metrics",
        "select list_transform([1], lambda x: x + 1), current_date, json_extract('[1]', '$[0]')",
    ):
        assert registry.sql_rows(query)[1], query


@pytest.mark.parametrize(
    ("query", "everything"),
    [
        ("select a from metrics", False),
        ("select m.a, count(*) from metrics as m group by 1", False),
        ("select a from runs join metrics m using (run) where m.b > 1", False),
        ("select * from metrics", True),
        ("from metrics", True),
        ("select m from metrics m", True),
        ("select to_json(metrics) from metrics", True),
        ("select a, metrics from metrics", True),
        ("select columns('x') from metrics", True),
        ("summarize metrics", True),
    ],
)
def test_queries_that_need_every_column_are_recognised(query: str, everything: bool):
    assert mentions_all(query, "metrics") is everything


def test_rollouts_are_rows_with_later_attempts_replacing_iterations(root: Path):
    registry = Registry(str(root))
    frame = registry.rollouts("s/lr=2,seed=0")
    assert list(frame.columns[:6]) == ["run", "sweep", "root", "name", "split", "tags"]
    assert sorted(frame["total_reward"]) == [0.25, 0.25, 1.0, 1.0, 1.25, 1.25, 2.0, 2.0]
    assert list(frame["attempt"]) == [1] * 4 + [2] * 4
    assert list(frame["ac_len"][:2]) == [0, 10] and list(frame["ok"][:2]) == [0, 1]
    assert [line for line in registry.problems if "2 malformed lines" in line]
    assert set(registry.rollouts(iteration=-1)["iteration"]) == {1}
    assert len(registry.rollouts(iteration=-3)) == len(registry.rollouts(iteration=9)) == 0
    query = "select run, avg(total_reward) m, any_value(split) s from rollouts group by 1"
    means = registry.sql(query)
    assert means["m"].tolist() == [1.125] and means["s"].tolist() == ["train"]


@pytest.mark.parametrize("cached", [True, False])
def test_changed_rollouts_are_read_again(root: Path, cached: bool):
    [path] = root.glob("s/runs/*.2/iteration_000001/*.jsonl")
    old = path.stat().st_mtime - 1000
    for file in root.rglob("*"):
        os.utime(file, (old, old))
    registry = Registry(str(root), cache=cached)
    assert len(registry.rollouts(keys=["total_reward"])) == 8
    assert len(registry.rollouts(keys=["total_reward"])) == 8
    path.write_text(written.dump([summary(1, 0, 0, 3.0, split="other")]))
    frame = registry.rollouts(keys=["total_reward"])
    assert list(frame["total_reward"])[-1] == 3.0 and len(frame) == 5
    assert "other" in set(frame["split"])


def test_a_folder_with_a_final_last_checkpoint_has_succeeded(tmp_path: Path):
    """Its record is marked `final`, or has that name, as in tinker-cookbook."""
    for name, records in {
        "named": [{"name": "000010"}, {"name": "final", "batch": 0, "epoch": 1}],
        "marked": [{"name": "x", "final": True}],
        "going-on": [{"name": "final"}, {"name": "000020"}],
        "begun": [{"name": "000010"}],
    }.items():
        (tmp_path / name).mkdir()
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / name / "checkpoints.jsonl").write_text(lines)
    states = {run.name: run.state.value for run in Registry(str(tmp_path)).handles()}
    assert states == dict.fromkeys(("named", "marked"), "succeeded") | dict.fromkeys(
        ("going-on", "begun"), "unknown"
    )


def test_costs_and_times_that_tinker_cookbook_records_are_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The file of spans is neither a run nor a problem."""
    folder = tmp_path / "root" / "lr=1e-4"
    folder.mkdir(parents=True)
    row = {"step": 0, "cost/cumulative_usd": 0.25, "time/sample:total": 3.5}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    span = {"name": "sample", "start_time": 0.0, "end_time": 3.5}
    (folder / "timing_spans.jsonl").write_text(json.dumps({"step": 0, "spans": [span]}) + "\n")
    registry = Registry(str(tmp_path / "root"))
    query = 'select "cost/cumulative_usd" usd, "time/sample:total" s from metrics'
    assert registry.sql(query).to_dict("records") == [{"usd": 0.25, "s": 3.5}]
    assert len(registry.runs()) == 1 and list(registry.problems) == []
    out = tmp_path / "metrics.csv"
    words = ["export", "--format", "csv", "--table", "metrics", "--out", str(out)]
    assert main([*words, "--root", str(tmp_path / "root")]) == 0
    assert capsys.readouterr().err == ""
    [exported] = csv.DictReader(out.read_text().splitlines())
    assert (exported["cost/cumulative_usd"], exported["time/sample:total"]) == ("0.25", "3.5")


def test_folders_of_other_programs_are_runs(root: Path):
    registry = Registry(str(root))
    frame = registry.runs()
    folders = frame[frame["sweep"] != "s"]
    assert sorted(folders["sweep"] + "/" + folders["name"]) == ["./alone", "other/deep/lr=1e-4"]
    assert dict(zip(folders["name"], folders["state"], strict=True)) == {
        "alone": "succeeded",
        "lr=1e-4": "unknown",
    }
    assert registry.run("other/deep/lr").config == {}
    alone = registry.run("./alone")
    assert alone.config == {"lr": 3, "nested": {"a": 1}} and alone.path == str(root / "alone")
    assert registry.metrics("other/deep/lr=1e-4")["loss"].tolist() == [7.0]
    assert registry.metrics(registry.runs(state="unknown"))["loss"].tolist() == [7.0]
    assert Registry(str(root / "alone")).metrics()["loss"].tolist() == [7.0]
    assert [run.name for run in registry.handles("other/*")] == ["lr=1e-4"]
    with pytest.raises(NotFound):
        registry.handles("nowhere")


def test_a_follower_reports_new_rows_once(root: Path):
    registry = Registry(str(root))
    follower = registry.follow()
    assert follower.poll() == []
    file = root / "alone" / "metrics.jsonl"
    with file.open("a") as stream:
        stream.write('{"step": 1, "loss": 6.0}\n{"step": 2')
    [news] = follower.poll()
    assert (news.run.name, news.rows, news.again) == ("alone", [{"step": 1, "loss": 6.0}], False)
    with file.open("a") as stream:
        stream.write("}\n")
    assert [batch.rows for batch in follower.poll()] == [[{"step": 2}]]
    file.write_text('{"step": 0}\n')
    assert [(batch.rows, batch.again) for batch in follower.poll()] == [([{"step": 0}], True)]
    file.write_text('{"step": 3}\n{"step": 4}\n')  # in place, and longer than before
    assert [(batch.rows, batch.again) for batch in follower.poll()] == [
        ([{"step": 3}, {"step": 4}], True)
    ]
    run = registry.run("s/lr=2,seed=0")
    later = root / "s" / "runs" / f"{run.id}.3"
    later.mkdir()
    (later / "metrics.jsonl").write_text('{"step": 5}\n')
    assert [(batch.rows, batch.again) for batch in follower.poll()] == [([{"step": 5}], True)]
    assert follower.poll() == []


def test_an_unreadable_file_does_not_hide_rows_of_others(root: Path, unreadable: set[str]):
    unreadable.add(str(root / "alone" / "metrics.jsonl"))
    registry = Registry(str(root))
    follower = registry.follow()
    with pytest.raises(StoreError, match="not for you"):
        follower.poll()
    run = registry.run("s/lr=2,seed=0")
    with open(f"{run.path}/metrics.jsonl", "a") as stream:
        stream.write('{"step": 77}\n')
    assert [batch.rows for batch in follower.poll()] == [[{"step": 77}]]
    unreadable.clear()
    [news] = follower.poll()
    assert (news.run.name, news.again, news.rows[0]["step"]) == ("alone", True, 0)
    assert follower.poll() == []


def test_skipped_lines_are_reported(root: Path):
    (root / "alone" / "metrics.jsonl").write_text('{"step": 0, "loss": 1}\nbad\n{"step')
    registry = Registry(str(root))
    assert registry.metrics("./alone", keys=["loss"])["loss"].tolist() == [1.0]
    assert registry.problems == [
        "./alone: metrics.jsonl: 1 malformed line and a torn last line skipped"
    ]


def test_the_cache_may_vanish(root: Path, tmp_path: Path):
    first = Registry(str(root)).metrics()
    for path in sorted((tmp_path / "home").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert Registry(str(root)).metrics().equals(first)
    assert json.dumps(Registry(str(root), cache=False).records()) == json.dumps(
        Registry(str(root)).records()
    )


@pytest.mark.parametrize("cached", [True, False])
def test_large_files_give_the_same_value_as_small_ones(root: Path, cached: bool):
    rows = ['{"step": 4, "loss": 1.5}', '{"loss": 9}', f'{{"step": 5, "loss": {2**60}}}', "bad"]
    small = "\n".join([*rows, '{"step": 6, "loss": "x"}\n'])
    large = small.replace("bad", "bad" * 100_000)
    for at, goal in (("last", "minimize"), ("best", "minimize"), ("best", "maximize")):
        metric = {"name": "loss", "goal": goal, "at": at}
        (root / "alone" / "metrics.jsonl").write_text(small)
        slow = [run.value(metric) for run in Registry(str(root), cache=False).handles()]
        (root / "alone" / "metrics.jsonl").write_text(large)
        registry = Registry(str(root), cache=cached)
        assert [run.value(metric) for run in registry.handles()] == slow


class Far(LocalStore):
    """A store whose files are not on this machine; it records the files that it reads."""

    is_remote = True

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.fetched: list[str] = []

    def local_path(self, path: str) -> None:
        return None

    def read(self, path: str) -> bytes:
        self.fetched.append(path)
        return super().read(path)

    def read_range(self, path: str, start: int, end: int) -> bytes:
        self.fetched.append(path)
        return super().read_range(path, start, end)


@pytest.mark.parametrize("cached", [True, False])
def test_a_remote_root_gives_the_same_and_is_read_once(
    root: Path, monkeypatch: pytest.MonkeyPatch, cached: bool
):
    near = Registry(str(root), cache=False)
    far = Far(str(root))
    monkeypatch.setattr("sweeper.results.catalog.open_store", lambda root: far)
    whole = root / "alone" / "metrics.jsonl"
    parts = whole.with_name("metrics.jsonl.parts")
    for _ in range(2):
        far.fetched.clear()
        registry = Registry("far://root", cache=cached)
        assert json.dumps(registry.records()) == json.dumps(near.records())
        assert registry.metrics().equals(near.metrics())
        assert registry.rollouts().equals(near.rollouts())
    assert not cached or set(far.fetched) == {"s/sweep.json"}
    data = whole.read_bytes()
    parts.mkdir()
    (parts / "0").write_bytes(data[:7])
    (parts / "7").write_bytes(data[7:])
    whole.unlink()
    assert [run.history.rows for run in Registry("far://root").handles(".")] == [
        [{"step": 0, "loss": 7.0}]
    ]
    assert Registry("far://root", cache=cached).metrics("./alone")["loss"].tolist() == [7.0]


def test_a_setting_with_numbers_and_words_is_two_columns(tmp_path: Path):
    """A sweep with `auto` must not break queries that compare numbers."""
    sweep = written.Written(tmp_path, "s", {"rank": [4, 16, "auto", True]})
    for rank in (4, 16, "auto", True):
        sweep.run({"rank": rank}, 0, [{"step": 0, "test/nll": 1.0}])
    sweep.save()
    registry = Registry(str(tmp_path), cache=False)

    def ask(query: str) -> list[tuple[object, ...]]:
        return registry.sql_rows(query)[1]

    assert ask("select rank from runs where rank > 8") == [(16,)]
    assert ask("select min(rank), max(rank) from runs") == [(4, 16)]
    texts = 'select "rank.text" from runs where "rank.text" is not null order by 1'
    assert ask(texts) == [("auto",), ("true",)]
    assert registry.table("runs").column("rank").to_pylist() == [4, 16, None, None]


def test_sql_lists_its_tables_and_suggests_one(root: Path):
    registry = Registry(str(root), cache=False)
    names = ["checkpoints", "items", "metrics", "rollouts", "runs", "scores"]
    assert [name for (name,) in registry.sql_rows("show tables")[1]] == names
    with pytest.raises(UsageError, match="run is not available; did you mean runs"):
        registry.sql("select * from run")


def test_a_condition_on_the_metric_suggests_value(root: Path):
    registry = Registry(str(root), cache=False)
    with pytest.raises(
        UsageError, match="no run has 'loss'; `value` is the run's value of the metric"
    ):
        registry.runs(where="loss < 0.3")
