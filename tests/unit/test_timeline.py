"""`sweeper export --format trace`: the attempts of a sweep on a time axis."""

import json

import pytest
from support import written

from sweeper.cli import main


@pytest.fixture
def spans(tmp_path, capsys):
    """Return a function that exports a sweep and returns the spans of its runs by name."""

    def export(sweep):
        sweep.save()
        out = tmp_path / "sweep.json"
        code = main(["export", "--root", str(tmp_path), "--format", "trace", "--out", str(out)])
        assert code == 0
        assert capsys.readouterr().out.endswith(f" events) to {out}\n")
        events = json.loads(out.read_text())["traceEvents"]
        names = {
            (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
        }
        by_run: dict[str, list[dict]] = {}
        for event in events:
            if event["ph"] == "X":
                by_run.setdefault(names[event["pid"], event["tid"]], []).append(event)
        return by_run

    return export


def test_attempts_are_spans_of_waiting_and_working(tmp_path, spans):
    sweep = written.Written(tmp_path, "s", {"lr": [1, 2]})
    sweep.run({"lr": 1}, 0, state="preempted", wall_s=30.0)
    sweep.run({"lr": 1}, 0, attempt=2, wall_s=60.0, paused_s=12.0)
    sweep.run({"lr": 2}, 0, state="failed", wall_s=5.0, reason="exit", detail="no file")
    by_run = spans(sweep)
    first, second = by_run["lr=1,seed=0"], by_run["lr=2,seed=0"]
    assert [span["name"] for span in first] == [
        "waits to start", "attempt 1", "waits to start", "attempt 2",
    ]  # fmt: skip
    # Each was recorded as ended at 01:09:05, and began at 01:01:05 and 01:02:05.
    assert [span["dur"] for span in first if span["name"] != "waits to start"] == [480e6, 420e6]
    assert first[3]["ts"] == first[2]["ts"] + first[2]["dur"]
    assert first[3]["args"]["delayed by the service (s)"] == 12.0
    assert second[1]["args"]["state"] == "failed"
    assert second[1]["args"]["detail"] == "no file"


def test_pauses_are_spans_within_their_attempt(tmp_path, spans):
    sweep = written.Written(tmp_path, "s", {"lr": [1, 2]})
    pauses = [
        {"reason": "rate_limit", "since": "2026-11-21T01:03:00Z", "for_s": 90.5},
        {"reason": "quota", "since": "2026-11-21T01:09:00Z", "for_s": 60.0},
    ]
    sweep.run({"lr": 1}, 0, paused_s=150.5, pauses=pauses)
    running = sweep.run({"lr": 2}, 0, state="running")
    beat = sweep.folder / "heartbeats" / f"{running}.1"
    beat.parent.mkdir(parents=True)
    beat.write_text(json.dumps({"schema": 1, "paused_s": 90.5, "pauses": pauses[:1]}))
    by_run = spans(sweep)
    _, attempt, first, last = by_run["lr=1,seed=0"]
    assert [span["name"] for span in (first, last)] == [
        "delayed: rate limit", "delayed: quota",
    ]  # fmt: skip
    assert (first["ts"] - attempt["ts"], first["dur"]) == (115e6, 90.5e6)
    # The attempt ended 5 s after the second began.
    assert (last["dur"], last["args"]) == (5e6, {"seconds": 60.0})
    assert by_run["lr=2,seed=0"][2] == first | {"tid": by_run["lr=2,seed=0"][1]["tid"]}


def test_open_attempts_last_until_now_and_planned_runs_are_absent(tmp_path, spans):
    sweep = written.Written(tmp_path, "s", {"lr": [1, 2, 3]})
    sweep.run({"lr": 1}, 0, state="running")
    sweep.run({"lr": 2}, 0, state="submitted")
    sweep.run({"lr": 3}, 0, state="planned")
    by_run = spans(sweep)
    assert set(by_run) == {"lr=1,seed=0", "lr=2,seed=0"}
    assert [span["name"] for span in by_run["lr=2,seed=0"]] == ["waits to start"]
    assert all(span["dur"] >= 0 for span in by_run["lr=1,seed=0"])
