"""How a step spends its time, by the metrics of our recipes and of tinker-cookbook."""

import json
from pathlib import Path

from support import written

from sweeper import analysis
from sweeper.cli import main
from sweeper.results.step_times import mean_times, of_rows

METRIC = {"name": "loss", "goal": "minimize", "at": "last"}


def test_parts_are_means_over_steps_longest_first():
    rows = [
        {"step": 0, "time/total": 4.0, "time/reward": 1.0, "time/sampling": 2.0},
        {"step": 1, "time/total": 2.0, "time/sampling": 2.0},
    ]
    times = of_rows(rows)
    assert times is not None
    assert (times.seconds, list(times.parts.items())) == (3.0, [("sampling", 2.0), ("reward", 0.5)])
    assert times.share("reward") == 0.5 / 3


def test_only_totals_of_spans_are_parts():
    row = {
        "time/total": 10.0,
        "time/train_step": 4.0,
        "time/sample:total": 6.0,
        "time/sample:count": 3,
        "time/sample:mean": 2.0,
        "time/sample:max": 3.0,
        "time/sampling_time_mean": 2.0,
        "time/odd": -1.0,
        "loss": 0.5,
    }
    times = of_rows([row])
    assert times is not None
    assert times.parts == {"sample": 6.0, "train_step": 4.0, "odd": 0.0}


def test_steps_without_total_or_parts_give_nothing():
    assert of_rows([{"time/sampling": 1.0}]) is None
    assert of_rows([{"time/total": 1.0}]) is None
    assert of_rows([{"time/total": 0.0, "time/sampling": 0.0}]) is None
    assert of_rows([]) is None


def test_a_part_missing_in_a_run_counts_as_zero():
    times = [of_rows([{"time/total": 2.0, "time/eval": 1.0}])]
    times.append(of_rows([{"time/total": 4.0, "time/save": 3.0}]))
    mean = mean_times([each for each in times if each])
    assert mean is not None
    assert (mean.seconds, mean.parts) == (3.0, {"save": 1.5, "eval": 0.5})


def test_a_report_has_a_row_of_shares_for_each_cell(tmp_path, capsys):
    sweep = written.Written(tmp_path, "timed", {"lr": [1, 2]}, METRIC)
    for lr in (1, 2):
        row = {"loss": lr, "time/total": 2.0, "time/sampling": lr / 2, "time/save": 0.5}
        sweep.run({"lr": lr}, 0, [{"step": step, **row} for step in range(3)])
    sweep.save()
    report = analysis.analyze(str(tmp_path), "timed", out=tmp_path / "report")
    markdown = (tmp_path / "report" / "report.md").read_text()
    rows = markdown.partition("## Where the time goes")[2].partition("##")[0].split("\n")
    cells = [[text.strip() for text in row.strip("|").split("|")] for row in rows if "|" in row]
    assert cells[0] == ["cell", "seconds", "sampling", "save"]
    assert [row[1:] for row in cells[2:]] == [["2.00", "25 %", "25 %"], ["2.00", "50 %", "25 %"]]
    assert "Where the time goes" in Path(report.html_path).read_text()
    assert main(["show", "timed/lr=2", "--root", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.partition("a step's time")[2]
    words = ["part", "seconds", "share", "whole", "step", "2", "sampling", "1", "50%"]
    line = "\N{BOX DRAWINGS LIGHT HORIZONTAL}"
    assert [word for word in shown.split() if line not in word][:9] == words


def test_the_newest_timelines_of_a_run_are_linked(tmp_path, capsys):
    sweep = written.Written(tmp_path, "timed", {"lr": [1, 2]}, METRIC)
    row = {"loss": 1, "time/total": 2.0, "time/sampling": 1.0}
    first, _ = (sweep.run({"lr": lr}, 0, [{"step": 0, **row}]) for lr in (1, 2))
    sweep.save()
    folder = sweep.folder / "runs" / f"{first}.1"
    for number in range(35):
        (folder / f"iteration_{number:06d}").mkdir()
        (folder / f"iteration_{number:06d}" / "other.txt").write_text("x")
    for step in (9, 20):
        (folder / f"iteration_{step:06d}" / "timing_gantt.html").write_text("<p>spans</p>")
    (folder / "trace_events.jsonl").write_text("{}\n")
    analysis.analyze(str(tmp_path), "timed", out=tmp_path / "report")
    gantt, trace = folder / "iteration_000020" / "timing_gantt.html", folder / "trace_events.jsonl"
    page = (tmp_path / "report" / "report.html").read_text()
    assert f'<a href="{gantt.as_uri()}">Gantt chart</a>, <a href="{trace.as_uri()}">trace' in page
    assert page.count("timing_gantt.html") == 1
    markdown = (tmp_path / "report" / "report.md").read_text()
    assert f": [Gantt chart]({gantt.as_uri()}), [trace]({trace.as_uri()})\n" in markdown
    assert main(["show", "timed/lr=1", "--root", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.partition("timelines of steps")[2].partition("files")[0]
    assert str(gantt) in shown and str(trace) in shown
    assert main(["show", "timed/lr=2", "--root", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["timelines"] == {}
