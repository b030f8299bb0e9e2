"""Alarms of a sweep: what and how much is read of its runs, and alarms that depend on time."""

import json
import math
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from sweeper.alarms import names, read
from sweeper.alarms.watcher import MOST_BYTES, Criteria, Seen, Watcher
from sweeper.common.alarm_thresholds import resolve
from sweeper.metrics.attempt_rows import Tail
from sweeper.store.local import LocalStore
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder
from sweeper.worker import heartbeat

NAN = '{"step": 1, "loss": NaN}\n'


class Folder:
    """A store with one run, whose metrics a test writes."""

    def __init__(self, root: Path) -> None:
        self.store = LocalStore(str(root))
        self.folder = SweepFolder(self.store, "s")
        self.now = 0.0
        self.told: list[str] = []

    def write(self, text: str, attempt: int = 1) -> None:
        path = f"{self.folder.log_path('r', attempt)}/metrics.jsonl"
        self.store.append(path, text.encode())

    def tail(self, attempt: int, most: int = 10**6) -> list[tuple[Any, bool]]:
        """Read `most` bytes at a time; return the steps of all rows and whether they are copies."""
        tail, rows = Tail(self.folder, "r", attempt), list[tuple[Any, bool]]()
        more = True
        while more:
            fresh = tail.read(most)
            rows += [(row.get("step"), copied) for row, copied in fresh.rows]
            more = fresh.more
        return rows

    def watcher(self, **given: Any) -> Watcher:
        return Watcher(
            self.folder, Criteria(resolve(given), lease=60.0, is_command=False, metric="loss"),
            set(), clock=lambda: self.now, tell=self.told.append,
        )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, no_sync: None) -> Folder:
    return Folder(tmp_path)


def rows(*steps: int, **more: Any) -> str:
    lines = ({"step": step, "loss": 1.0 + step % 2} | more for step in steps)
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.mark.parametrize("most", [30, 64, 10**6])
def test_rows_come_whole_whatever_is_read_at_a_time(folder, most):
    folder.write(rows(0, 1, 2, 3) + '{"step": 4, "lo')
    assert folder.tail(1, most) == [(n, False) for n in range(4)]


def test_an_overlong_line_is_skipped(folder):
    folder.write('{"step": 0, "x": "' + "x" * 500 + '"}\n' + rows(1, 2))
    assert folder.tail(1, 100) == [(1, False), (2, False)]


def test_only_what_is_new_is_read(folder):
    folder.write(rows(0, 1))
    tail = Tail(folder.folder, "r", 1)
    assert len(tail.read(1000).rows) == 2 and tail.read(1000).size == 0
    folder.write(rows(2))
    fresh = tail.read(1000)
    assert [row["step"] for row, _ in fresh.rows] == [2] and fresh.size == len(rows(2))
    folder.store.replace("s/runs/r.1/metrics.jsonl", rows(0).encode())
    fresh = tail.read(1000)
    assert fresh.again and [row["step"] for row, _ in fresh.rows] == [0]


@pytest.mark.parametrize("more", [(), (7, 8, 9)])
def test_a_file_rewritten_in_place_is_read_again(folder, more):
    """Its inode and its size look like those of a file that only grew."""
    folder.write(rows(0, 1, 2))
    tail = Tail(folder.folder, "r", 1)
    assert len(tail.read(1000).rows) == 3
    path = folder.store.local_path("s/runs/r.1/metrics.jsonl")
    assert path is not None
    with open(path, "r+") as file:
        file.write(rows(3, 4, 5, *more))
    os.utime(path)
    fresh = tail.read(1000)
    assert fresh.again and [row["step"] for row, _ in fresh.rows] == [3, 4, 5, *more]
    folder.write(rows(10))
    fresh = tail.read(1000)
    assert not fresh.again and [row["step"] for row, _ in fresh.rows] == [10]


def test_parts_and_then_the_whole_on_a_store_that_is_elsewhere():
    store = open_store(f"memory://{uuid.uuid4().hex}")
    folder = SweepFolder(store, "s")
    path = f"{folder.log_path('r', 1)}/metrics.jsonl"
    tail = Tail(folder, "r", 1)

    def steps() -> list[Any]:
        return [row["step"] for row, _ in tail.read(1000).rows]

    assert steps() == []
    store.replace(f"{path}.parts/0", rows(0, 1).encode())
    assert steps() == [0, 1]
    store.replace(f"{path}.parts/{len(rows(0, 1))}", rows(2).encode())
    assert (steps(), steps()) == ([2], [])
    store.replace(path, rows(0, 1, 2, 3).encode())
    store.remove([f"{path}.parts/0", f"{path}.parts/{len(rows(0, 1))}"])
    assert (steps(), steps()) == ([3], [])


@pytest.mark.parametrize("most", [40, 10**6])
def test_copies_of_the_attempt_before_are_marked(folder, most):
    folder.write(rows(0, 1) + NAN + rows(3, 4))
    folder.write(rows(0, 1) + NAN + rows(3, time=2) + rows(4), attempt=2)
    expected = [(0, True), (1, True), (1, True), (3, False), (4, False)]
    assert folder.tail(2, most) == expected


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (json.dumps({"error": 'KeyError:\n"a" (line 2)', "question": "q"}) + "\n", '"a" (line 2)'),
        (json.dumps({"error": "KeyError", "response": "x" * 10**5}), ": KeyError"),
        ("[1]\n", "and counted as wrong"),
        (None, "and counted as wrong"),
    ],
)
def test_the_alarm_of_a_broken_reward_has_its_error(folder, written, message):
    """The alarm shows what the reward function raised."""
    if written is not None:
        path = f"{folder.folder.log_path('r', 1)}/iteration_000001/reward_failures.jsonl"
        folder.store.append(path, written.encode())
    folder.write(rows(0) + rows(1, **{"env/all/frac_reward_failed": 1.0}))
    raised, _ = folder.watcher().check([Seen("r", 1, running=True)])
    [shown] = [new.evidence.message for new in raised if new.rule == "judge_failed"]
    assert shown.endswith(message) and "\n" not in shown


def test_sampler_against_trainer_is_compared_with_the_other_runs_of_the_model(folder):
    """The order of reading does not matter. A mixture of experts may differ ten times as much."""
    key = "optim/kl_sample_train_v2"
    first = {"faulty": 0.004, "a": 0.0002, "b": 0.00021, "mixture": 0.004, "c": 0.002}
    first["drifts"] = 0.3  # its policy changes several times within a step
    models = {"mixture": "moe", "c": "moe"}
    for run, value in first.items():
        path = f"{folder.folder.log_path(run, 1)}/metrics.jsonl"
        folder.store.append(path, rows(0, 1, **{key: value}).encode())
    watcher = folder.watcher()
    runs = [
        Seen(run, 1, running=True, model=models.get(run, "dense"), drifts=run == "drifts")
        for run in first
    ]
    raised = watcher.check(runs)[0]
    later = rows(*range(2, 9)) + rows(9, **{key: 0.004})
    folder.store.append(f"{folder.folder.log_path('faulty', 1)}/metrics.jsonl", later.encode())
    raised += watcher.check(runs)[0]
    assert [(alarm.run, alarm.rule) for alarm in raised] == [("faulty", "mismatch")]
    assert (
        "10 times the usual value of the sweep's other runs, 0.0002" in raised[0].evidence.message
    )


def test_an_attempt_that_began_anew_has_no_copies(folder):
    folder.write(rows(0, 1, time=1))
    folder.write(rows(0, 1, time=2), attempt=2)
    assert folder.tail(2) == [(0, False), (1, False)]


def test_rows_copied_by_a_resume_raise_no_second_alarm(folder):
    folder.write(rows(0) + NAN)
    watcher = folder.watcher()
    assert [f.rule for f in watcher.check([Seen("r", 1, True)])[0]] == ["nan"]
    folder.write(rows(0) + NAN, attempt=2)
    assert watcher.check([Seen("r", 2, True)])[0] == []
    folder.write(NAN.replace("1", "2", 1), attempt=2)
    assert [f.rule for f in watcher.check([Seen("r", 2, True)])[0]] == ["nan"]
    folder.write(NAN, attempt=2)
    assert watcher.check([Seen("r", 2, True)])[0] == []


def test_an_ended_attempt_is_reported_once_read(folder):
    folder.write(rows(*range(40)))
    watcher = folder.watcher()
    assert watcher.check([Seen("r", 1, False)]) == ([], {("r", 1)})
    assert watcher.check([Seen("none", 1, False)]) == ([], {("none", 1)})


def test_a_look_reads_a_bounded_number_of_bytes(folder):
    row = json.dumps({"step": 0, "note": "x" * 10_000}) + "\n"
    folder.write(row * (3 * MOST_BYTES // len(row)) + NAN)
    watcher, looks, over = folder.watcher(), 0, set[tuple[str, int]]()
    rules: list[str] = []
    while not over:
        new, over = watcher.check([Seen("r", 1, False)])
        rules += [f.rule for f in new]
        looks += 1
    assert rules == ["nan"]
    assert looks >= 3


def test_stalled_by_its_own_pace_and_never_while_paused(folder):
    watcher = folder.watcher()
    for step in range(10):
        folder.write(rows(step))
        assert watcher.check([Seen("r", 1, True)])[0] == []
        folder.now += 5
    pause = {"reason": "rate_limit", "since": "2026-01-01T00:00:00Z"}
    for second in range(0, 3000, 100):
        time = f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}Z"
        beat = {"paused": pause, "time": time}
        assert watcher.check([Seen("r", 1, True, 0.0, beat)])[0] == []
        folder.now += 100
    folder.now -= 60
    assert watcher.check([Seen("r", 1, True, 0.0, {})])[0] == []
    folder.now += 20
    raised, _ = watcher.check([Seen("r", 1, True, 0.0, {})])
    assert [f.rule for f in raised] == ["stalled"] and raised[0].evidence.bound == 50


def test_stalled_runs_are_listed_even_after_their_alarm(folder):
    watcher, key = folder.watcher(), ("r", 1)
    for step in range(4):
        folder.write(rows(step))
        watcher.check([Seen("r", 1, True)])
        folder.now += 5
    rules: list[str] = []
    for wait in (51, 600):  # the first stall then counts as the longest step
        folder.now += wait
        for quiet, stalled in ((0.0, {key}), (61.0, set[tuple[str, int]]()), (0.0, {key})):
            rules += [f.rule for f in watcher.check([Seen("r", 1, True, quiet)])[0]]
            assert watcher.stalled == stalled
        folder.write(rows(9))
        watcher.check([Seen("r", 1, True)])
        assert watcher.stalled == set()
    assert rules == ["stalled"]
    off = folder.watcher(stalled=None)
    off.check([Seen("r", 1, True)])
    folder.now += 1e6
    off.check([Seen("r", 1, True)])
    assert off.stalled == set()


@pytest.mark.parametrize(
    ("last", "seconds"), [({"progress": 1.0}, 600), ({"progress": 57.0}, 0), ({}, 0)]
)
def test_work_after_the_last_step_is_not_stalled(folder, last, seconds):
    """A progress of 1.0 marks the last step and gives ten minutes more; percentages do not."""
    watcher = folder.watcher()
    for step in range(10):
        folder.write(rows(step, **(last if step == 9 else {})))
        watcher.check([Seen("r", 1, True)])
        folder.now += 2
    folder.now += seconds + 27
    assert watcher.check([Seen("r", 1, True)])[0] == []
    folder.now += 2
    assert [f.rule for f in watcher.check([Seen("r", 1, True)])[0]] == ["stalled"]


@pytest.mark.parametrize(
    ("more", "pace"), [({}, 5.0), ({"time/total": 8.0}, 8.0), ({"time/step": 8.0}, 8.0)]
)
def test_the_stall_limit_follows_the_slowest_of_the_last_50_steps(folder, more, pace):
    watcher = folder.watcher(stalled={"after": 1, "factor": 1})
    folder.write(rows(0, **more))
    watcher.check([Seen("r", 1, True)])
    for step in range(1, 51):
        folder.now += 5.0 if step == 1 else 2.0
        folder.write(rows(step, **(more if step == 1 else {"time/total": 1.0})))
        assert watcher.check([Seen("r", 1, True)])[0] == []
    folder.now += pace
    assert watcher.check([Seen("r", 1, True)])[0] == []
    folder.now += 0.1
    [alarm] = watcher.check([Seen("r", 1, True)])[0]
    assert alarm.evidence.bound == pace


@pytest.mark.parametrize(
    "beat",
    [
        {"paused": 3, "machine": [1], "host": None, "time": {}},
        {"paused": {"reason": 1}, "machine": {"disk_free_bytes": "x"}, "time": 5},
    ],
)
def test_a_heartbeat_may_hold_anything(folder, beat):
    assert folder.watcher().check([Seen("r", 1, True, 0.0, beat)])[0] == []


def test_rollouts_are_read_where_there_are_some(folder):
    turn = {"ac_len": 3, "metrics": {"stop/max_tokens": 1.0}}
    for step in range(10):
        path = f"s/runs/r.1/iteration_{step:06d}/train_rollout_summaries.jsonl"
        line = json.dumps({"group_idx": 0, "total_reward": step / 10, "steps": [turn]}) + "\n"
        folder.store.append(path, line.encode())
        folder.write(rows(step))
    raised, _ = folder.watcher().check([Seen("r", 1, False)])
    assert [(f.rule, f.evidence.step) for f in raised] == [("truncation", 7)]


def test_records_are_read_once_where_the_caller_remembers(folder):
    from sweeper.alarms.records import Alarm, put

    alarm = Alarm("r", "a/b", 2, "nan", "2026-01-01T00:00:00Z", "x", 3, math.inf, None, "m", "a")
    assert put(folder.folder, alarm) and not put(folder.folder, alarm)
    remembered: dict[str, Alarm] = {}
    assert read(folder.folder, known=remembered) == [alarm]
    os.truncate(f"{folder.store.root}/s/alarms/r.2.nan.json", 0)
    assert read(folder.folder, known=remembered) == [alarm]
    assert read(folder.folder) == []  # damaged files are skipped
    orders = alarm._replace(rule="kl", advice="\x1b[2Jlower it")
    assert put(folder.folder, orders)
    assert [alarm_read.advice for alarm_read in read(folder.folder)] == ["lower it"]
    folder.store.remove(["s/alarms/r.2.kl.json"])
    folder.store.append("s/alarms/stray.json", b"{}")
    assert names(folder.folder) == [("r", 2, "nan")]


def test_heartbeats_report_free_disk_and_memory(tmp_path):
    facts = heartbeat.facts(str(tmp_path))
    assert 0 < facts["disk_free_bytes"] <= facts["disk_total_bytes"]
    assert 0 < facts["memory_free_bytes"] <= facts["memory_total_bytes"]
    assert "disk_free_bytes" not in heartbeat.facts(str(tmp_path / "none"))
    (tmp_path / "job/step").mkdir(parents=True)
    (tmp_path / "own").write_text("1:cpu:/x\n0::/job/step\n")
    for name, limit, used in (("job", "1000", "700"), ("job/step", "max", "600")):
        (tmp_path / name / "memory.max").write_text(limit + "\n")
        (tmp_path / name / "memory.current").write_text(used + "\n")
        (tmp_path / name / "memory.stat").write_text("anon 5\ninactive_file 50\n")
    assert heartbeat.container_memory(str(tmp_path), str(tmp_path / "own")) == (350, 1000)
    (tmp_path / "own").write_text("0::/elsewhere\n")
    assert heartbeat.container_memory(str(tmp_path), str(tmp_path / "own")) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epoch 1 loss 0.5\nepoch 2 loss 0.4\n",
         "no 'loss' was recorded, and no other metric; 2 lines of its metrics file cannot be "
         "read: the first: epoch 1 loss 0.5"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n",
         "no 'loss' was recorded, and no other metric; 3 lines of its metrics file cannot be "
         "read: it is a Git LFS pointer, not the file: run `git lfs pull`"),
        ('{"step": 1, "eval": {"loss": 1}}\n', "no 'loss' was recorded; recorded: eval"),
        ('{"step": 1, "loss": {"train": 1, "test": 2}}\n',
         "loss is never a number: it was recorded as an object with train, test"),
        ('{"step": 1, "loss": "0.5"}\n', 'loss is never a number: it was recorded as "0.5"'),
        ('{"step": 1, "loss": [1, 2]}\n', "loss is never a number: it was recorded as a list"),
        (rows(1, 2) + '{"step": 3, "loss": null}\n{"step": 4, "loss": null}\n',
         "the last 2 rows have no loss: the value may have become NaN, which some programs do "
         "not write"),
        (rows(1, 2) + '{"step": 3, "time": 1}\n', None),
        (rows(1, 2) + '{"step": 3, "loss": "NaN"}\n', None),
    ],
)  # fmt: skip
def test_the_metric_alarm_says_what_the_run_recorded_instead(folder, text, words):
    folder.write(text)
    raised, over = folder.watcher().check([Seen("r", 1, running=False, succeeded=True)])
    messages = [new.evidence.message for new in raised if new.rule == "metric"]
    assert messages == ([] if words is None else [words]) and over == {("r", 1)}
