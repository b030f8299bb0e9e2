"""Several roots, and sweeps with the same runs: none are mixed or picked silently."""

from pathlib import Path
from typing import Any

import pytest
from support import written

from sweeper import analysis
from sweeper.cli import main
from sweeper.errors import UsageError
from sweeper.results.registry import Registry

Roots = tuple[str, str]


@pytest.fixture
def roots(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Roots:
    """Return two roots. Each has a sweep `one` with the same runs, and the first also has `two`.
    Their losses are 0, 100 and 50."""
    monkeypatch.delenv("SWEEPER_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    for root, name, loss in (("A", "one", 0.0), ("A", "two", 50.0), ("B", "one", 100.0)):
        sweep = written.Written(tmp_path / root, name, {"x": [1, 2]}, metric={"name": "loss"})
        for x in (1, 2):
            for seed in (0, 1, 2):
                rows = [{"step": 0, "loss": loss + seed / 10 + x / 100, "root": "of the model"}]
                sweep.run({"x": x}, seed, rows, checkpoints=written.checkpoint(f"{root}{name}"))
        sweep.save()
    return str(tmp_path / "A"), str(tmp_path / "B")


@pytest.mark.parametrize("table", ["metrics", "checkpoints"])
def test_runs_of_two_roots_are_joined_without_duplicates(roots: Roots, table: str):
    registry = Registry(*roots)
    count = "select count(*), count(distinct (runs.root, sweep, run)) from runs join"
    assert registry.sql_rows(f"{count} {table} using (run, sweep, root)")[1] == [(18, 18)]
    low = "select min(loss) >= {} from runs join metrics using (run, sweep, root) where runs."
    for least, where in ((50, "sweep = 'two'"), (100, f"root = '{roots[1]}'")):
        assert registry.sql_rows(low.format(least) + where)[1] == [(True,)]


def test_every_table_has_a_root_column(roots: Roots):
    registry = Registry(*roots)
    for frame in (registry.metrics(), registry.checkpoints(), registry.rollouts()):
        assert list(frame.columns[:3]) == ["run", "sweep", "root"]
    assert set(registry.metrics()["root"]) == set(roots)
    assert set(registry.metrics()["metric.root"]) == {"of the model"}
    assert list(registry.items().columns[:3]) == ["run", "sweep", "root"]


def test_a_join_by_ambiguous_ids_warns(roots: Roots):
    registry = Registry(*roots)
    with pytest.warns(UserWarning, match=r"using \(run, sweep, root\)"):
        registry.sql("select min(loss) from runs join metrics using (run)")
    assert any("using (run, sweep, root)" in line for line in registry.problems)
    registry.sql("select min(loss) from runs join metrics using (run, sweep, root)")
    assert not registry.problems
    single = Registry(roots[1])
    single.sql("select min(loss) from runs join metrics using (run)")
    assert not single.problems  # the ids of one sweep are unique


def test_an_ambiguous_name_is_refused_with_both_roots(roots: Roots):
    registry = Registry(*roots)
    for find, name in ((registry.run, "one/x=1,seed=0"), (registry.sweep, "one")):
        with pytest.raises(UsageError) as raised:
            find(name)
        assert all(f"{root}/one" in str(raised.value) for root in roots)
    assert registry.run(f"{roots[1]}/one/x=1,seed=0").root == roots[1]
    assert registry.sweep(f"{roots[1]}/one").root == roots[1]
    assert registry.sweep("two").root == roots[0]
    assert set(registry.runs("one")["root"]) == set(roots)
    assert set(registry.runs(f"{roots[1]}/on*")["root"]) == {roots[1]}


def test_compare_keeps_the_cells_of_two_roots_apart(roots: Roots):
    comparison = analysis.compare(Registry(*roots).runs())
    assert len(comparison.cells) == 6
    assert set(comparison.cells["n"]) == {3}
    assert comparison.best == f"{roots[0]}/one/x=1"


def test_reading_verbs_read_several_roots(
    roots: Roots, ask: Any, capsys: pytest.CaptureFixture[str]
):
    both = [word for root in roots for word in ("--root", root)]
    assert {run["root"] for run in ask("ls", *both)["runs"]} == set(roots)
    assert len(ask("ls", "one", *both)["runs"]) == 12
    assert len(ask("ls", f"{roots[1]}/one", *both)["runs"]) == 6
    assert main(["ls", *both, "--limit", "1"]) == 0
    assert roots[0] in capsys.readouterr().out  # otherwise rows of two roots would look alike
    query = "select root, count(*) from runs group by 1 order by 1"
    assert ask("sql", query, *both)["rows"] == [[roots[0], 12], [roots[1], 6]]
    named = [cost["value"] for cost in ask("costs", "one", *both)["costs"]]
    assert len(named) == len(set(named)) == 4
    assert main(["show", "one/x=1,seed=0", *both]) == 2
    assert main(["show", f"{roots[1]}/one/x=1,seed=0", *both]) == 0


@pytest.mark.parametrize(
    "verb", [["pause", "one"], ["sweep", "delete", "one"], ["launch", "g.yaml"]]
)
def test_verbs_that_change_a_sweep_refuse_two_roots(
    roots: Roots, verb: list[str], capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as raised:
        main([*verb, "--root", roots[0], "--root", roots[1]])
    assert raised.value.code == 2
    assert "--root is given twice" in capsys.readouterr().err


def test_sweeps_of_one_name_in_two_roots_can_be_compared(roots: Roots, ask: Any):
    document = ask("compare", "A/one", "B/one")
    assert [round(cell["difference"]) for cell in document["cells"]] == [100, 100]
    document = ask("compare", "A/one/x=1", "B/one/x=2")
    assert [round(cell["difference"]) for cell in document["cells"]] == [100]
    report = analysis.analyze(
        Registry(*roots), [f"{root}/one" for root in roots], out="report", pictures=False
    )
    assert len(report.cells) == 4


def test_compare_reports_that_a_run_stands_for_its_cell(
    roots: Roots, capsys: pytest.CaptureFixture[str]
):
    of_root = ["--root", roots[0]]
    assert main(["compare", "one/x=1,seed=0", "one/x=2", *of_root]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["A one/x=1", "B one/x=2"]
    assert "A is the whole cell of the named run: 3 runs" in lines
    assert main(["compare", "one/x=1,seed=0", "one/x=1,seed=1", *of_root]) == 0
    assert "configuration" in capsys.readouterr().out  # of two runs it shows the differences
    both = ["one/x=1,seed=0", "one/x=1", *of_root]
    assert main(["compare", *both]) == 2
    assert "both in the cell" in capsys.readouterr().err
