"""`sweeper best`, `analysis.best` and the order of `ls`: the same judgement as the report's."""

from pathlib import Path

import pytest
from support import written
from support.verbs import ask

import sweeper
from sweeper import analysis
from sweeper.cli import main
from sweeper.errors import NotFound, UsageError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a sweep whose last values are noisy, and one that is maximized."""
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SWEEPER_ROOT", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    metric = {"name": "loss", "goal": "minimize", "at": "auto"}
    noisy = written.Written(tmp_path / "root", "noisy", {"x": [1, 2, 3]}, metric=metric)
    for x in (1, 2, 3):
        for seed in range(3):
            wave = (-1) ** (x + seed) * 0.4
            rows = [{"step": i, "loss": x + 5 / (i + 1) + wave * (-1) ** i} for i in range(40)]
            noisy.run({"x": x}, seed, rows)
    noisy.save()
    metric = {"name": "acc", "goal": "maximize", "at": "last"}
    up = written.Written(tmp_path / "root", "up", {"x": [1, 2, "auto"]}, metric=metric)
    for x, value in ((1, 0.25), (2, 0.75), ("auto", 0.5)):
        up.run({"x": x}, 0, [{"step": 0, "acc": value}])
    up.run({"x": 2}, 1, state="planned")
    up.save()
    return tmp_path / "root"


@pytest.mark.parametrize("sweep", ["noisy", "up"])
def test_best_agrees_with_the_report(root, sweep, capsys):
    report = analysis.analyze(str(root), sweep, out="report", pictures=False).document
    answer = ask(capsys, "best", sweep, "-n", "0")
    assert answer["cells"] == report["cells"]
    assert (answer["at"], answer["label"]) == (report["metric"]["at"], report["verdict"]["label"])
    assert answer["cells"][0]["cell"] == report["verdict"]["best"]
    result = analysis.best(str(root), sweep)
    assert [dict(row) for row in result.cells] == report["cells"]
    assert list(result.frame["cell"]) == [row["cell"] for row in report["cells"]]
    assert len(ask(capsys, "best", sweep, "-n", "1")["cells"]) == 1


def test_best_prints_how_it_judges(root, capsys):
    assert main(["best", "up", "-n", "2"]) == 0
    out = capsys.readouterr().out
    assert "x=2" in out and "2 of 3 cells" in out and "last value of acc (higher is better)" in out
    assert not (root / "up" / "report").exists()


def test_a_sweep_without_a_metric_or_values_has_no_best(root):
    bare = written.Written(root, "bare", {"x": [1]}, metric=None)
    bare.run({"x": 1}, 0, [{"step": 0, "loss": 1}])
    bare.save()
    with pytest.raises(UsageError, match="bare has no metric: choose one with --metric"):
        analysis.best(str(root), "bare")
    with pytest.raises(NotFound, match="no run has a value of nothing yet"):
        analysis.best(str(root), "bare", metric="nothing", goal="minimize")
    with pytest.raises(NotFound):
        analysis.best(str(root), "gone")
    assert analysis.best(str(root), "up").cells  # still a function at its second use
    assert sweeper.analysis.best is analysis.best


def test_ls_sorts_and_limits(root, capsys):
    def names(*options: str) -> list[str]:
        return [run["name"] for run in ask(capsys, "ls", "up", *options)["runs"]]

    worst_last = ["x=2,seed=0", "x=auto,seed=0", "x=1,seed=0", "x=2,seed=1"]
    assert names("--sort", "value") == worst_last  # the best first; runs without a value last
    assert names("--sort=-value") == [*worst_last[2::-1], "x=2,seed=1"]
    assert names("--sort", "x") == ["x=1,seed=0", "x=2,seed=0", "x=2,seed=1", "x=auto,seed=0"]
    assert names("--sort", "value", "--limit", "1") == worst_last[:1]
    assert ask(capsys, "ls", "up", "--limit", "1")["count"] == 4
    assert main(["ls", "up", "--sort", "vlue"]) == 2
    assert "did you mean 'value'" in capsys.readouterr().err
    assert main(["ls", "--sort", "value"]) == 2  # loss and acc have no common order
    assert main(["ls", "up", "--limit", "2"]) == 0
    assert "2 of 4 runs" in capsys.readouterr().out


def test_ls_says_where_the_report_may_judge_otherwise(root, capsys):
    assert main(["ls", "up"]) == 0
    assert "sweeper best" not in capsys.readouterr().out  # its grid says `at: last`
    assert main(["ls", "noisy"]) == 0
    assert "`sweeper best SWEEP` uses the same values as the report" in capsys.readouterr().out


def test_status_lists_sweeps_by_their_time(root, capsys):
    for name, created in (("aaa", "2027-01-01T00:00:00Z"), ("zzz", "2020-01-01T00:00:00Z")):
        late = written.Written(root, name, {"x": [1]}, created=created)
        late.run({"x": 1}, 0)
        late.save()
    names = [sweep["sweep"] for sweep in ask(capsys, "status")["sweeps"]]
    assert names == ["zzz", "noisy", "up", "aaa"]


def test_a_plan_prints_as_a_line_and_names_are_the_public_ones(tmp_path):
    (tmp_path / "g.yaml").write_text(
        "command: [sh, -c, 'true {x}']\ngrid: {x: [1, 2]}\nlaunch: {backend: local}\n"
    )
    plan = sweeper.plan(str(tmp_path / "g.yaml"))
    assert str(plan).startswith("<plan g: 2 runs of ") and "\n" not in str(plan)
    assert {"analysis", "launch", "Registry"} <= set(dir(sweeper))
    assert not {name for name in dir(sweeper) if name.startswith("_") and name[:2] != "__"}
    assert "importlib" not in dir(sweeper)
