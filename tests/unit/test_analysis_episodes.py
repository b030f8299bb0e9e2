"""Episodes by cell and by task, in sweeps whose truth is known."""

import json

import pytest
from scipy import stats
from support import written

from sweeper import analysis
from sweeper.analysis.comparison.episodes import f_test
from sweeper.analysis.reading.rollouts import parse_rollouts


def episode(task, reward, turns=3, stop="done", group=0, **fields):
    steps = [
        {"step_idx": n, "ac_len": 4, "metrics": {}, "logs": {"response": "ls", "output": ""}}
        for n in range(turns)
    ]
    steps[0]["logs"] |= {"item": task, "question": "Do it."}
    if stop != "done":
        steps[-1]["metrics"] = {f"stop/{stop}": 1.0}
    about = {"solved": float(reward >= 1), f"stop/{stop}": 1.0} | fields
    return {"group_idx": group, "total_reward": reward, "trajectory_metrics": about, "steps": steps}


def test_an_episode_is_parsed_from_its_rollout():
    row = episode("a", 0.5, stop="max_turns", seconds=2.5, environment_failures=2, episodes_lost=1)
    row["steps"][1]["metrics"] = {"stop/max_tokens": 1.0}
    (parsed,) = parse_rollouts([row], 0, "train")
    assert parsed.episode == ("a", 3, False, "max_turns", 1, 2.5, 2, 1)
    # Older records have no trajectory metrics: the reward says whether all was earned.
    older = row | {"trajectory_metrics": {}, "total_reward": 1.0}
    (parsed,) = parse_rollouts([older], 0, "train")
    assert parsed.episode == ("a", 3, True, "max_turns", 1, None, 0, 0)
    question = {"total_reward": 1.0, "steps": [{"logs": {"question": "2+2", "response": "4"}}]}
    assert parse_rollouts([question], 0, "train")[0].episode is None


def test_the_p_of_a_task_is_that_of_an_analysis_of_variance():
    groups = [[0.1, 0.2, 0.35], [0.5, 0.55], [0.3, 0.1, 0.2, 0.4]]
    assert f_test(groups) == pytest.approx(stats.f_oneway(*groups).pvalue, abs=1e-12)
    assert f_test([[1.0, 1.0], [0.0, 0.0]]) == 0.0 and f_test([[1.0, 1.0], [1.0, 1.0]]) == 1.0
    assert f_test([[1.0], [0.0]]) is f_test([[1.0, 0.5]]) is None


@pytest.fixture
def episodes_study(tmp_path):
    """Analyze two cells of two runs; the names of the tasks say which cells solve them."""
    metric = {"name": "env/all/reward/total", "goal": "maximize", "at": "last"}
    sweep = written.Written(tmp_path, "shells", {"rate": [1, 2]}, metric)
    for rate in (1, 2):
        for seed in range(2):
            rows = [{"step": s, "env/all/reward/total": 0.3 * rate + seed / 100} for s in range(2)]
            run = sweep.run({"rate": rate}, seed, rows)
            for iteration in (0, 1):
                in_group = [
                    episode("easy", 1.0, seconds=2.0 * rate),
                    episode("hard", 0.25, turns=8, stop="max_turns", group=1),
                    episode("telling", [0.1, 1.0][rate - 1] - seed / 50, group=2),
                    episode("once", float(rate == 1 and iteration == 0), group=3),
                ]
                about = {"environment_failures": 1, "solved": rate - 1.0}
                in_group[2]["trajectory_metrics"] |= about
                path = sweep.folder / "runs" / f"{run}.1" / f"iteration_{iteration:06d}"
                path.mkdir(parents=True)
                lines = "".join(json.dumps(row) + "\n" for row in in_group)
                (path / "train_rollout_summaries.jsonl").write_text(lines)
    sweep.save()
    return analysis.analyze(str(tmp_path), "shells", out=tmp_path / "report", pictures=True)


def test_the_report_compares_cells_and_tasks_of_episodes(episodes_study):
    """The numbers are in the document, on the page and in the text."""
    (entry,) = episodes_study.document["episodes"]
    assert (entry["split"], entry["read"], entry["iterations"]) == ("train", 32, 2)
    tasks = {task["task"]: task for task in entry["tasks"]}
    assert next(iter(tasks)) == "telling" and tasks["hard"]["solved_by"] == []
    assert tasks["once"]["solved_by"] == ["rate=1"] and tasks["telling"]["solved_by"] == ["rate=2"]
    assert tasks["telling"]["p"] < 0.01 < tasks["easy"]["p"] == 1.0
    assert tasks["telling"]["gap"] == pytest.approx(0.9)
    best, rival = entry["cells"]
    assert (best["cell"], best["runs"], best["tasks"], rival["tasks"]) == ("rate=2", 2, 2, 2)
    figures = rival["figures"]
    assert rival["first"] == pytest.approx((1 + 0.25 + 0.09 + 1) / 4)
    assert figures["reward"] == pytest.approx((1 + 0.25 + 0.09) / 4)
    assert figures["solved"] == figures["limited"] == figures["stops"]["max_turns"] == 0.25
    assert figures["turns"] == (3 + 8 + 3 + 3) / 4
    assert (figures["failures"], figures["lost"], figures["seconds"]) == (4, 0, 2.0)
    with open(episodes_study.html_path) as file:
        page = file.read()
    with open(episodes_study.files["report.md"]) as file:
        text = file.read()
    for shown in (page, text):
        assert "Cells differ in telling, beyond the noise." in shown
        assert "No cell ever solves 1 task: hard." in shown
        assert "8 environments ended by themselves" in shown
