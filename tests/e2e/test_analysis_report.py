"""Reports of sweeps with known results: each states them, and no text in it is executed."""

import base64
import functools
import gc
import json
import math
import re
import zlib
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support import written

from sweeper import analysis
from sweeper.errors import NotFound, StoreError, UsageError

pytestmark = pytest.mark.e2e

# Pictures take longer than everything else, so they have their own test.
analyze = functools.partial(analysis.analyze, pictures=False)


def kinds(report: Any) -> list[str]:
    return [finding["kind"] for finding in report.document["findings"]]


def page(report: Any) -> str:
    """Return the page without its packed data."""
    text = Path(report.html_path).read_text()
    return re.sub(r'(<script type="text/plain"[^>]*>).*?</script>', r"\1</script>", text)


def unpacked(report: Any, name: str) -> str:
    """Return the data that the browser unpacks."""
    text = Path(report.html_path).read_text()
    match = re.search(rf'<script type="text/plain" id="{name}">(.*?)</script>', text)
    return zlib.decompress(base64.b64decode(match[1])).decode()


def test_a_clear_winner_inside_the_grid(tmp_path: Path):
    written.grid_of_means(tmp_path, {(1e-4, 8): 0.9, (1e-3, 8): 0.2, (1e-2, 8): 1.1})
    report = analyze(str(tmp_path), "demo")
    assert gc.isenabled()
    verdict = report.document["verdict"]
    assert (verdict["kind"], verdict["best"]) == ("clear", "lr=0.001,rank=8")
    assert kinds(report) == ["separated"]
    assert set(verdict["told_apart"]) == {"lr=0.0001,rank=8", "lr=0.01,rank=8"}
    best = report.document["cells"][0]
    assert best["n"] == 3 and best["low"] < best["mean"] < best["high"]
    values = [run["value"] for run in report.document["runs"] if run["cell"] == verdict["best"]]
    assert best["mean"] == pytest.approx(sum(values) / 3)
    winner = min(
        (run for run in report.document["runs"] if run["cell"] == verdict["best"]),
        key=lambda run: run["value"],
    )
    assert verdict["checkpoint"]["run"] == winner["name"]
    assert verdict["checkpoint"]["path"] in report.verdict
    assert "clear winner" in report.verdict
    headings = re.findall(r"<th[^>]*>(?:<button[^>]*>)?([^<]*)<", page(report))
    # A position is not called `rank`, since cells may have a setting of that name.
    assert {"#", "cell #"} <= {*headings} and "rank" not in headings


def test_two_equal_winners_and_a_worse_one(tmp_path: Path):
    means = {(1e-4, 8): 2.0, (1e-3, 8): 0.30, (1e-2, 8): 0.301, (1e-1, 8): 3.0}
    written.grid_of_means(tmp_path, means)
    report = analyze(str(tmp_path), "demo")
    verdict = report.document["verdict"]
    equals = {"lr=0.001,rank=8", "lr=0.01,rank=8"}
    assert verdict["kind"] == "tied"
    assert {verdict["best"], *verdict["tied"]} == equals
    assert set(verdict["told_apart"]) == {"lr=0.0001,rank=8", "lr=0.1,rank=8"}
    assert "edge" not in kinds(report)
    standing = re.findall(r'<td class="standing">([^<]*)', page(report))
    assert standing == ["best", "may be as good", "worse", "worse"]
    assert len(re.findall(r'<tr class="t\d apart"', page(report))) == 2


def test_a_winner_at_the_edge_suggests_the_next_value(tmp_path: Path):
    written.grid_of_means(tmp_path, {(1e-4, 8): 2.0, (1e-3, 8): 1.0, (1e-2, 8): 0.3})
    report = analyze(str(tmp_path), "demo")
    (edge,) = [f for f in report.document["findings"] if f["kind"] == "edge"]
    evidence = edge["evidence"]
    assert (evidence["axis"], evidence["value"], evidence["side"]) == (
        "learning_rate",
        0.01,
        "largest",
    )
    assert (evidence["suggestion"], evidence["inner"], evidence["values"]) == (0.1, 0.001, 3)
    assert evidence["told"] and evidence["gain"]["value"] == pytest.approx(-0.7)
    assert any("0.1" in step for step in report.document["verdict"]["next"])


def test_maximizing_turns_the_order(tmp_path: Path):
    metric = {"name": "test/nll", "goal": "maximize", "at": "last"}
    written.grid_of_means(tmp_path, {(1e-4, 8): 0.9, (1e-3, 8): 2.2, (1e-2, 8): 1.1}, metric=metric)
    report = analyze(str(tmp_path), "demo")
    assert report.document["verdict"]["best"] == "lr=0.001,rank=8"
    other = analyze(str(tmp_path), "demo", goal="minimize", out=tmp_path / "o")
    assert other.document["verdict"]["best"] == "lr=0.0001,rank=8"
    assert re.search(r"sweeper analyze demo --root \S+</pre>", page(report))
    assert re.search(r"sweeper analyze demo --root \S+ --goal minimize</pre>", page(other))


def test_the_best_value_and_its_own_checkpoint(tmp_path: Path):
    metric = {"name": "reward", "goal": "maximize", "at": "best"}
    sweep = written.Written(tmp_path, metric=metric)
    rows = [{"step": s, "reward": v} for s, v in ((0, 0.0), (10, 0.9), (20, 0.4))]
    records = [
        {"name": "10", "batch": 10, "sampler_path": "tinker://ten", "ttl_seconds": 604800},
        {"name": "final", "batch": 20, "final": True, "sampler_path": "tinker://final"},
    ]
    sweep.run({}, 0, rows, checkpoints=records)
    sweep.save()
    verdict = analyze(str(tmp_path), "demo").document["verdict"]
    assert verdict["checkpoint"]["path"] == "tinker://ten"
    assert verdict["checkpoint"]["expires"] == "deleted 7 days after it was saved"


def test_a_cell_with_a_diverged_run_is_never_best(tmp_path: Path):
    sweep = written.Written(tmp_path, axes={"lr": [1, 2, 3]})
    for seed in range(3):
        sweep.run({"lr": 1}, seed, [{"step": 1, "test/nll": 0.5 + seed / 100}])
        lost = [{"step": 0, "test/nll": 0.1}, {"step": 1, "test/nll": math.nan}]
        fine = [{"step": 1, "test/nll": 0.1 + seed / 100}]
        sweep.run({"lr": 2}, seed, lost if seed == 0 else fine)
    sweep.save()
    report = analyze(str(tmp_path), "demo")
    assert report.document["verdict"]["best"] == "lr=1"
    (finding,) = [f for f in report.document["findings"] if f["kind"] == "diverged"]
    assert finding["cells"] == ["lr=2"] and finding["evidence"]["runs"] == ["lr=2,seed=0"]
    cell = next(c for c in report.document["cells"] if c["cell"] == "lr=2")
    assert (cell["n"], cell["diverged"]) == (2, 1)


def test_an_unfinished_sweep_counts_what_succeeded_only(tmp_path: Path):
    sweep = written.Written(tmp_path, axes={"lr": [1, 2]})
    for seed in range(2):
        sweep.run({"lr": 1}, seed, [{"step": 1, "test/nll": 0.5 + seed}])
        sweep.run({"lr": 2}, seed, [{"step": 1, "test/nll": 0.01 * seed}], "running")
    log = "".join(f"line {i}\n" for i in range(40)) + "ValueError: <b>no</b>\n"
    sweep.run({"lr": 2}, 2, state="failed", reason="error", detail="why", log=log)
    sweep.run({"lr": 2}, 3, state="planned")
    sweep.run({"lr": 9}, 0, [{"step": 1, "test/nll": 0.0}], retired=True)
    sweep.save()
    report = analyze(str(tmp_path), "demo")
    assert report.document["verdict"]["best"] == "lr=1"
    states = {"succeeded": 2, "running": 2, "failed": 1, "planned": 1}
    completeness = report.document["completeness"]
    expected = {"planned": 6, "used": None, "retired": 1, "states": states, "places": []}
    assert completeness == expected
    assert {"alone", "incomplete", "retired"} <= set(kinds(report))
    text = page(report)
    assert "ValueError: &lt;b&gt;no&lt;/b&gt;" in text and "line 39" in text
    assert "line 20" not in text and "error: why, exit code 1" in text


def test_identical_replicates_get_no_interval(tmp_path: Path):
    sweep = written.Written(tmp_path, axes={"lr": [1, 2]})
    for seed in range(3):
        sweep.run({"lr": 1}, seed, [{"step": s, "test/nll": 0.5 / (s + 1)} for s in range(4)])
        sweep.run({"lr": 2}, seed, [{"step": 1, "test/nll": 0.9}])
    sweep.save()
    report = analyze(str(tmp_path), "demo")
    assert report.document["verdict"]["kind"] == "unproven"
    assert {"identical", "same_value", "not_compared"} <= set(kinds(report))
    findings = {f["kind"]: f for f in report.document["findings"]}
    # Equal single values do not imply equal seeds: a coarse metric repeats. Equal curves do.
    assert findings["identical"]["cells"] == ["lr=1"]
    assert findings["same_value"]["cells"] == ["lr=2"]
    assert all(cell["low"] is None for cell in report.document["cells"])


@pytest.mark.parametrize(
    ("rows", "state", "metric", "expected"),
    [
        ([], "failed", True, "nothing_done"),
        ([], "planned", True, "nothing_done"),
        ([{"step": 1, "test/nll": 0.3}], "running", True, "nothing_done"),
        ([{"step": 1, "test/nll": math.nan}], "succeeded", True, "all_diverged"),
        ([{"step": 1, "other": 1.0}], "succeeded", True, "metric_missing"),
        ([], "succeeded", True, "metric_missing"),
        ([{"step": 1, "other": 1.0}], "succeeded", False, "no_metric"),
    ],
)
def test_a_sweep_without_a_winner_names_none(
    tmp_path: Path, rows: Any, state: str, metric: bool, expected: str
):
    sweep = written.Written(tmp_path, axes={"lr": [1]}, metric=written.METRIC if metric else None)
    sweep.run({"lr": 1}, 0, rows, state)
    sweep.save()
    report = analysis.analyze(str(tmp_path), "demo")
    verdict = report.document["verdict"]
    assert (verdict["kind"], verdict["best"], verdict["checkpoint"]) == ("none", None, None)
    assert expected in kinds(report)
    texts = [Path(report.files[name]).read_text() for name in ("report.json", "report.md")]
    for text in (page(report), *texts):
        assert not re.search(r"\bNone\b|\bnan\b|Undefined", text)
    json.loads(Path(report.json_path).read_text(), parse_constant=pytest.fail)


def test_a_single_run_reads_well(tmp_path: Path):
    sweep = written.Written(tmp_path)
    sweep.run({}, None, written.curve(0.3), cell="")
    sweep.save()
    report = analyze(str(tmp_path), "demo")
    assert report.document["verdict"]["kind"] == "alone"
    assert "one run, so no interval" in report.verdict
    assert "None" not in page(report)


def test_without_seeds_nothing_is_proven(tmp_path: Path):
    sweep = written.Written(tmp_path, axes={"lr": [1, 2, 3]})
    for lr in (1, 2, 3):
        sweep.run({"lr": lr}, None, [{"step": 1, "test/nll": 0.1 * abs(lr - 2) + 0.1}])
    sweep.save()
    verdict = analyze(str(tmp_path), "demo").document["verdict"]
    assert (verdict["kind"], verdict["best"]) == ("unproven", "lr=2")
    assert verdict["not_compared"] == ["lr=1", "lr=3"]


def test_another_metric_needs_its_goal(tmp_path: Path):
    written.grid_of_means(tmp_path, dict.fromkeys([(1e-3, 8), (1e-2, 8)], 0.5), seeds=2)
    with pytest.raises(UsageError, match="--goal minimize or --goal maximize"):
        analyze(str(tmp_path), "demo", metric="train/x")
    report = analyze(str(tmp_path), "demo", metric="train/nll")
    assert report.document["metric"]["goal"] == "minimize"
    assert "lower is better (guessed from its name: --goal maximize reverses it)" in report.verdict
    judged = analyze(str(tmp_path), "demo", metric="test/nll", at="best")
    assert judged.document["metric"] == {
        **{"name": "test/nll", "goal": "minimize", "at": "best", "guessed": False},
        **{"noise": "auto", "failed": "bound", "by": None, "relevant": None},
    }
    assert "analyze demo --root" in page(judged) and "--at best" in page(judged)
    with pytest.raises(NotFound):
        analyze(str(tmp_path), "nothing")


def test_the_same_records_give_the_same_bytes_wherever_they_lie(tmp_path: Path):
    documents: list[tuple[str, ...]] = []
    for place in ("one", "two"):
        written.grid_of_means(tmp_path / place, {(1e-3, 8): 0.4, (1e-2, 8): 0.5})
        for _ in range(2):  # the second time, there is a report already
            report = analyze(tmp_path / place, "demo")
            html, text = Path(report.html_path), Path(report.json_path)
            # Only the commands contain the path.
            assert html.read_bytes().count(str(tmp_path / place).encode()) < 8
            root = str(tmp_path / place)
            documents.append(tuple(path.read_text().replace(root, "") for path in (html, text)))
    assert len(set(documents)) == 1
    assert str(tmp_path) not in documents[0][0]


@pytest.mark.parametrize("out", ["file", "file/below", "nul\0"])
def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path: Path, out: str):
    (tmp_path / "file").write_text("")
    written.measured(tmp_path, [({"lr": 1}, [0.5])])
    with pytest.raises(UsageError, match=r"the folder .* cannot be created"):
        analyze(str(tmp_path), "demo", out=f"{tmp_path}/{out}")


def test_a_report_that_cannot_be_written_is_an_error_of_the_store(tmp_path: Path):
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    written.measured(tmp_path, [({"lr": 1}, [0.5])])
    with pytest.raises(StoreError, match="cannot be written"):
        analyze(str(tmp_path), "demo", out=tmp_path / "out")


def test_enormous_numbers_are_numbers(tmp_path: Path):
    huge = 10**400
    sweep = written.Written(tmp_path, axes={"lr": [1, huge, 3]})
    for lr, end in ((1, 1.5e308), (huge, huge), (3, -1.5e308)):
        for seed in range(2):
            rows = [{"step": s, "test/nll": end, "loss": 1.7976931e308 - s} for s in range(2)]
            rows.append({"step": huge, "loss": huge})
            rows[1]["test/nll"] = end + seed * (end // 9)
            sweep.run({"lr": lr}, seed, rows)
    sweep.save()
    report = analyze(str(tmp_path), "demo")  # pytest turns warnings into errors
    verdict = report.document["verdict"]
    assert (verdict["best"], verdict["told_apart"]) == ("lr=3", ["lr=1"])
    assert report.document["cells"][0]["mean"] == pytest.approx(-1.5e308 / 18 * 19)
    assert [cell["diverged"] for cell in report.document["cells"]] == [0, 0, 2]
    json.loads(Path(report.json_path).read_text(), parse_constant=pytest.fail)
    assert len(report.runs) == 6
    assert not re.search(r'="-?(nan|inf)"', page(report))


def test_a_run_has_its_log_and_tells_its_checkpoints_apart(tmp_path: Path):
    sweep = written.Written(tmp_path, axes={"lr": [1, 2]})
    paths = {"sampler_path": "tinker://sample", "state_path": "tinker://train"}
    record = {"name": "final", "batch": 1, "final": True, **paths}
    rows = [{"step": 1, "test/nll": 1.0}]
    sweep.run({"lr": 1}, 0, rows, log="began\nended\n", checkpoints=[record])
    sweep.run({"lr": 2}, 0, rows, state="planned")
    sweep.save()
    report = analyze(str(tmp_path), "demo")
    shown = {run["name"]: run for run in json.loads(unpacked(report, "data"))["runs"].values()}
    done, planned = shown["lr=1,seed=0"], shown["lr=2,seed=0"]
    assert done["log"] == ["began", "ended"] and planned["log"] == []
    assert (done["quoted"], planned["quoted"]) == ("demo/lr=1,seed=0", None)
    wanted = r'id="run-log" data-before="\S*sweeper logs" data-after="--root (.*?)"'
    logs = re.search(wanted, page(report))
    assert logs is not None and logs[1] == str(tmp_path)
    facts = dict(done["facts"])
    assert facts["checkpoint for sampling"] == "tinker://sample"
    assert facts["checkpoint for training"] == "tinker://train"
    head = page(report).split('id="runs-table"')[1].split("</thead>")[0]
    assert ">lr</button>" in head


def test_long_numbers_are_cut_for_people_and_small_ones_are_not_zero(tmp_path: Path):
    rates = (8.977406710561e-4, 3.1415926535897931, 3.2)
    cells = [
        ({"rate": rate, "k": k}, [mean * 0.9, mean, mean * 1.1])
        for rate, mean in zip(rates, (0.0023, 0.9, 1.2), strict=True)
        for k in (1, 2)
    ]
    written.measured(tmp_path, cells, axes=("rate", "k"))
    report = analyze(str(tmp_path), "demo")
    assert report.verdict.startswith("demo: rate 8.977e-4, k 1")
    assert report.document["cells"][0]["settings"]["rate"] == rates[0]
    heat = page(report).split('class="heat"')[1].split("</table>")[0]
    assert "0.0023" in heat and ">0.00<" not in heat and "8.977e-4" in heat


def test_no_interval_leaves_what_the_metric_can_be(tmp_path: Path):
    metric = {"name": "reward", "goal": "maximize", "at": "last"}
    sweep = written.Written(tmp_path, axes={"lr": [1, 2]}, metric=metric)
    for lr, ends in ((1, (0.0, 1.0, 0.1)), (2, (0.9, 1.0, 0.2))):
        for seed, end in enumerate(ends):
            sweep.run({"lr": lr}, seed, [{"step": 0, "reward": 0.0}, {"step": 1, "reward": end}])
    sweep.save()
    report = analyze(str(tmp_path), "demo")
    assert all(0 <= cell["low"] < cell["high"] <= 1 for cell in report.document["cells"])
    levels = report.document["axes"][0]["levels"]
    assert all(0 <= level["low"] <= level["high"] <= 1 for level in levels)
    # Three noisy runs show almost nothing: two shares differ by at most 1.
    lead = report.document["verdict"]["lead"]
    assert lead["low"] == -1.0 and 0 < lead["high"] <= 1.0


@pytest.mark.parametrize(
    ("steps", "evaluated", "shown"),
    [(range(60), 60, 60), (range(1, 61), 0, 60), (range(0, 60, 10), 60, 60), ((), 80, 80)],
)
def test_steps_are_counted_as_done(tmp_path: Path, steps: Any, evaluated: int, shown: int):
    rows = [{"step": step, "train/nll": 1.0} for step in steps]
    rows = [*rows, {"step": evaluated, "test/nll": 1.0}, {"step": evaluated + 20, "test/nll": 1.0}]
    rows = rows if steps else [{"step": s, "test/nll": 1.0} for s in (0, 40, 80)]
    sweep = written.Written(tmp_path)
    sweep.run({}, 0, sorted(rows, key=lambda row: row["step"]))
    sweep.save()
    report = analyze(str(tmp_path), "demo")
    assert [run["steps"] for run in report.document["runs"]] == [shown]


def test_null_is_shown_and_a_missing_setting_is_a_dash(tmp_path: Path):
    cells = [({"cap": None}, [0.1]), ({"cap": 5, "warmup": 1}, [0.9])]
    written.measured(tmp_path, cells, axes=["cap"])
    text = page(analyze(str(tmp_path), "demo"))
    assert re.search(r'class="axis">cap</span> <span class="value">null<', text)
    assert re.findall(r'<td data-sort="[^"]*" class="set">([^<]*)<', text) == [
        *("null", "\u2013", "5", "1"),  # in the table of cells
        *("null", "\u2013", "5", "1"),  # in the table of runs
    ]


def test_ratios_are_shown_as_such(tmp_path: Path):
    cells = [({"lr": 1}, [0.07, 0.08, 0.10]), ({"lr": 2}, [1.26, 1.54, 1.80])]
    written.measured(tmp_path, cells)
    report = analyze(str(tmp_path), "demo")
    assert report.document["method"]["scale"] == "log"
    row = report.document["cells"][1]
    assert row["difference"] is None and row["ratio"] == pytest.approx(18.407, abs=0.001)
    text = page(report)
    assert "\u00d718.4, p" in text
    assert "geometric<br>mean</button>" in text and "log scale, because" in text


class Elements(HTMLParser):
    """The elements of a page and their attributes, as a browser would see them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes.update(name for name, _ in attrs)


def test_names_values_keys_and_logs_are_text(tmp_path: Path):
    sweep = written.hostile(tmp_path)
    report = analyze(str(tmp_path), sweep.name)
    text = page(report)
    elements = Elements()
    elements.feed(text)
    assert elements.tags["script"] == 3  # the data, plotly and ours: none from the sweep
    assert not {"img", "b", "i", "u", "iframe"} & elements.tags.keys()
    assert not {name for name in elements.attributes if name.startswith("on") or name == "src"}
    assert "{{ 7*7 }}{% raw %}" in text
    assert "\x1b" not in report.verdict
    json.loads(unpacked(report, "data"))


def test_the_policy_allows_the_pages_own_scripts_and_nothing_else(tmp_path: Path):
    written.grid_of_means(tmp_path, {(1e-3, 8): 0.4, (1e-2, 8): 0.5}, seeds=2)
    text = Path(analyze(str(tmp_path), "demo").html_path).read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy[1].startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert "unsafe" not in policy[1].split("style-src")[0]
    assert not re.search(r"<(link|img|iframe|script)[^>]+(src|href)=", text)


def test_a_report_serves_a_notebook(tmp_path: Path):
    import plotly.graph_objects as go

    written.grid_of_means(tmp_path, {(1e-3, 8): 0.4, (1e-2, 8): 0.5}, seeds=2)
    report = analyze(str(tmp_path), "demo", out=tmp_path / "elsewhere")
    assert Path(report.html_path).parent == tmp_path / "elsewhere"
    assert not (tmp_path / "demo" / "report").exists()
    assert list(report.cells["learning_rate"]) == [1e-3, 1e-2]
    assert len(report.runs) == 4
    assert {"test/nll", "train/nll", "learning_rate"} <= {*report.figures}
    for figure in report.figures.values():
        go.Figure(figure)  # plotly checks every property
