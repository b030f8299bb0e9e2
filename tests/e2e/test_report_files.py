"""The report without a browser: Markdown, PNGs, and the verbs that make them."""

import json
import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import written

from sweeper import analysis

pytestmark = pytest.mark.e2e

NAN = math.nan
PNG = b"\x89PNG\r\n\x1a\n"


def sweeper(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "sweeper", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("sweep", ["truth", "hostile", "hostile-rl"])
def test_markdown_with_pictures_beside_it(tmp_path: Path, sweep: str):
    make = {"truth": written.truth, "hostile": written.hostile}.get(sweep, written.hostile_rollouts)
    make(tmp_path)
    first = analysis.analyze(str(tmp_path), sweep, out=tmp_path / "out")
    before = {name: Path(path).read_bytes() for name, path in first.files.items()}
    analysis.analyze(str(tmp_path), sweep, out=tmp_path / "out")
    text = Path(first.files["report.md"]).read_text()
    named = re.findall(r"!\[.*?\]\(([\w.-]+\.png)\)", text)
    pictures = {name for name in first.files if name.endswith(".png")}
    assert set(named) == pictures and {"cells.png", "curves-1.png", "axes-1.png"} <= pictures
    for name, path in first.files.items():
        data = Path(path).read_bytes()
        assert data == before[name]
        if name.endswith(".png"):
            assert data.startswith(PNG) and len(data) > 2000
    # Outside of code blocks there are no tags and no links.
    prose = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"<\w|<!|(?<!!)(?<!\\)\[", prose)


def test_the_same_bytes_from_another_process(tmp_path: Path):
    written.hostile_rollouts(tmp_path / "sweeps")
    reports: list[dict[str, bytes]] = []
    out = tmp_path / "out"
    for seed in ("1", "2"):  # for Python's hashes, which order sets
        command = ["analyze", "--root", str(tmp_path / "sweeps"), "hostile-rl", "--out", str(out)]
        environment = os.environ | {"PYTHONHASHSEED": seed, "XDG_CACHE_HOME": str(tmp_path / seed)}
        environment.pop("SWEEPER_HOME", None)
        subprocess.run([sys.executable, "-m", "sweeper", *command], env=environment, check=True)
        reports.append({path.name: path.read_bytes() for path in out.iterdir() if path.is_file()})
    assert reports[0] == reports[1] and "report.html" in reports[0]


def test_matplotlib_is_quiet_and_a_failed_import_is_explained(tmp_path: Path):
    written.grid_of_means(tmp_path, {(1e-3, 8): 0.2, (1e-2, 8): 1.1})
    command = [sys.executable, "-m", "sweeper", "analyze", "demo", "--root", str(tmp_path)]

    def analyzed(**environment: str) -> "subprocess.CompletedProcess[str]":
        env = os.environ | environment
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    done = analyzed(MPLCONFIGDIR="/proc/no")
    assert done.returncode == 0 and done.stderr == ""
    done = analyzed(MPLBACKEND="crayons")
    assert done.returncode == 2 and done.stderr.startswith("sweeper: matplotlib cannot be loaded: ")
    assert "'crayons' is not a valid value" in done.stderr and "--no-pictures" in done.stderr
    assert done.stderr.count("\n") == 1


ODD_SETTINGS = (
    *(1, 2, 3, -1, 1e-4, 0.5, True, None, "a", "$x$", "", [1], {"b": {"c": 2}}, 1e308, 10**30),
)
ODD_VALUES = (
    0.1,
    0.2,
    -1.0,
    0.0,
    NAN,
    math.inf,
    1e308,
    -1e308,
    5e-324,
    10**400,
    None,
    "text",
    True,
)
KEYS = ("m", "reward", "train/loss", "num_tokens", "time/total", "optim/entropy")


@pytest.mark.parametrize("seed", range(16))
def test_odd_values_anywhere_end_in_a_report(tmp_path: Path, seed: int):
    rng = random.Random(seed)
    axes = [f"k{i}" for i in range(rng.randint(0, 3))]
    metric = {"name": "m", "goal": rng.choice(("minimize", "maximize")), "at": "last"}
    grid = rng.choice(("", "grid: {k0: [1, 2, 3]}", "grid: 3", "["))
    declared = {axis: list(ODD_SETTINGS) for axis in axes}
    sweep = written.Written(tmp_path, axes=declared, metric=metric, grid=grid)
    for number in range(rng.randint(0, 7)):
        settings = {axis: rng.choice(ODD_SETTINGS) for axis in axes if rng.random() < 0.9}
        for replicate in range(rng.randint(1, 4)):
            pool = rng.choice((ODD_VALUES, (0.1, 0.11, 0.12), (1, 2, 3), (0.5,)))
            rows = [
                {"step": rng.choice((i, i, i, None)), **{k: rng.choice(pool) for k in KEYS}}
                for i in range(rng.choice((0, 1, 2, 5, 300)))
            ]
            state = rng.choice(("succeeded",) * 6 + ("failed", "running", "planned", "lost"))
            run = sweep.run(settings, replicate, rows, state, cell=f"c{number}")
            if rows and state != "planned":
                rewards = [
                    [rng.choice((0, 1, 0.5, NAN, 1e308)) for _ in range(3)] for _ in range(2)
                ]
                written.rollouts(sweep, run, 0, rewards, lengths=(rng.choice((0, 90)),))
    sweep.save()
    report = analysis.analyze(str(tmp_path), "demo", prices="train=1")  # warnings are errors here
    assert len(report.runs) == len(sweep.document["runs"]) and report.cells is not None
    json.loads(Path(report.json_path).read_text(), parse_constant=pytest.fail)


def test_the_verbs(tmp_path: Path):
    for name, shift in (("one", 0.0), ("two", 0.5)):
        means = {(1e-4, 8): 0.9 + shift, (1e-3, 8): 0.2 + shift, (1e-2, 8): 1.1 + shift}
        written.grid_of_means(tmp_path / "sweeps", means, name=name)
    root, out = ("--root", tmp_path / "sweeps"), ("--out", tmp_path / "out", "--no-pictures")
    output = sweeper("analyze", *root, "one", *out)
    assert "clear winner" in output and "a run takes 81 steps" in output  # 0 to 80
    both = json.loads(sweeper("analyze", *root, "one", "two", *out, "--json"))
    assert both["sweep"] == "one + two" and len(both["cells"]) == 6
    folder = sweeper("analyze", tmp_path / "sweeps" / "two", *out)
    assert folder.startswith("two: ")
    assert "A better" in sweeper("compare", *root, "one", "two")
    document = json.loads(sweeper("compare", *root, "one/lr=0.0001", "one/lr=0.01", "--json"))
    assert document["cells"][0]["difference"] == pytest.approx(0.2)


def test_a_report_of_many_runs_stays_small(tmp_path: Path):
    sweep = written.Written(tmp_path, axes={"lr": list(range(40))})
    for lr in range(40):
        for seed in range(5):
            sweep.run({"lr": lr}, seed, written.curve(lr / 40 + seed / 500, steps=500, every=1))
    sweep.save()
    report = analysis.analyze(str(tmp_path), "demo", pictures=False)
    assert Path(report.html_path).stat().st_size < 4e6
    points = [len(trace["x"]) for figure in report.figures.values() for trace in figure["data"]]
    assert sum(points) < 300_000


@pytest.mark.parametrize("app", ["https://wandb.ai", "javascript:alert(1)//"])
def test_runs_lead_to_wandb_and_alarms_are_listed(tmp_path: Path, app: str):
    section = {"project": "a b", "entity": "us", "mode": None, "app": app}
    sweep = written.Written(tmp_path, axes={"lr": [1, 2]}, wandb=section)
    runs = [
        sweep.run({"lr": lr}, seed, written.curve(lr + seed / 50))
        for lr in (1, 2)
        for seed in (0, 1)
    ]
    alarm = {"name": "lr=2,seed=1", "time": "2026-11-21T01:05:00Z", "message": "<b>nll</b> is NaN"}
    (sweep.folder / "alarms").mkdir(parents=True)
    (sweep.folder / "alarms" / f"{runs[-1]}.1.nan.json").write_text(
        json.dumps({"schema": 1, **alarm})
    )
    sweep.save()
    report = analysis.analyze(str(tmp_path), "demo")
    text, markdown = Path(report.html_path).read_text(), Path(report.files["report.md"]).read_text()
    links = re.findall(r'href="(https://wandb[^"]*)"', text)
    if app.startswith("https"):
        assert len(links) == 5  # one for each run, and one more for the best
        assert all(link.startswith("https://wandb.ai/us/a%20b/runs/") for link in links)
        assert "[The best run in W&B](<https://wandb.ai/us/a%20b/runs/" in markdown
    assert "javascript:" not in text + markdown
    assert "&lt;b&gt;nll&lt;/b&gt; is NaN" in text and "&lt;b&gt;nll&lt;/b&gt; is NaN" in markdown
    (finding,) = [f for f in report.document["findings"] if f["kind"] == "alarms"]
    assert finding["text"] == "1 alarm went off in 1 run: nan (1)." and finding["cells"] == ["lr=2"]
    assert "1 alarm went off" not in report.verdict  # the best cell has no alarm


def test_a_sweep_may_be_given_by_its_address(tmp_path: Path):
    written.grid_of_means(tmp_path / "sweeps", {(1e-3, 8): 0.2, (1e-2, 8): 1.1})
    address = f"file://{tmp_path}/sweeps/demo/"
    output = sweeper("analyze", address, "--no-pictures", "--root", tmp_path / "elsewhere")
    assert output.startswith("demo: learning_rate 0.001  [clear winner]")
    assert (tmp_path / "sweeps" / "demo" / "report" / "report.html").is_file()
