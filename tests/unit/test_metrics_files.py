"""Metrics files are found by name; CSV files of common loggers are read like `metrics.jsonl`."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sweeper.metrics.attempt_rows import Tail
from sweeper.metrics.files import MetricsFile
from sweeper.results.progress import reached
from sweeper.results.registry import Registry
from sweeper.store.local import LocalStore
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder

LIGHTNING = "epoch,step,train_loss,val_loss\n0,49,0.5,\n0,99,0.25,\n0,99,,0.75\n"
RLLIB = (
    "timesteps_total,training_iteration,episode_reward_mean,done,date\r\n"
    '4000,1,-1.5,False,"2026-11-26, noon"\r\n8000,2,nan,True,later\r\n'
)
GROWN = "loss,time/iterations\n0.5,1\nloss,reward,time/iterations\n0.25,2.0,2\n0.125,,3\n"


def rows(text: str | bytes, name: str = "metrics.csv") -> list[dict[str, Any]]:
    return MetricsFile(name).parse(text if isinstance(text, bytes) else text.encode()).rows


def test_empty_cells_are_skipped():
    assert rows(LIGHTNING) == [
        {"epoch": 0, "step": 49, "train_loss": 0.5},
        {"epoch": 0, "step": 99, "train_loss": 0.25},
        {"epoch": 0, "step": 99, "val_loss": 0.75},
    ]


def test_cells_are_typed_and_the_step_is_recognised():
    first, second = rows(RLLIB, "progress.csv")
    assert first == {
        "timesteps_total": 4000, "training_iteration": 1, "step": 1,
        "episode_reward_mean": -1.5, "done": False, "date": "2026-11-26, noon",
    }  # fmt: skip
    assert (second["step"], second["done"], second["episode_reward_mean"]) == (2, True, "nan")
    assert rows("a\n12345678901234567890\n1e400\n1_0\n") == [
        {"a": 12345678901234567890}, {"a": math.inf}, {"a": "1_0"},
    ]  # fmt: skip


def test_the_header_may_grow_within_a_file():
    assert rows(GROWN) == [
        {"loss": 0.5, "time/iterations": 1, "step": 1},
        {"loss": 0.25, "reward": 2.0, "time/iterations": 2, "step": 2},
        {"loss": 0.125, "time/iterations": 3, "step": 3},
    ]


@pytest.mark.parametrize(
    ("text", "malformed", "torn"),
    [
        (b"", 0, 0),
        (b"a,step\n1,2\n3", 0, 1),  # the number may be incomplete
        (b"1,2\n3,4\n", 2, 0),  # no header
        (b"a,step\n1,2,3\n\n1,2\n", 1, 0),
        (b'a,step\n"1,2\n1,2\n', 1, 0),
        (b"a,step\n\xff,2\n1,2\n", 1, 0),
        (b"\xef\xbb\xbfstep,a\n1,2\n", 0, 0),
    ],
)
def test_malformed_and_torn_lines_are_counted(text: bytes, malformed: int, torn: int):
    parsed = MetricsFile("metrics.csv").parse(text)
    assert (parsed.malformed, parsed.torn) == (malformed, torn)
    assert all(row["step"] in (1, 2) for row in parsed.rows)


class Desk:
    """A store with one run; tests write its attempts."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.folder = SweepFolder(store, "s")

    def write(self, name: str, text: str, attempt: int = 1) -> None:
        self.store.replace(f"{self.folder.log_path('r', attempt)}/{name}", text.encode())

    def tail(self, attempt: int = 1, most: int = 10**6) -> Any:
        tail = Tail(self.folder, "r", attempt)

        def read() -> list[tuple[Any, bool]]:
            steps, more = list[tuple[Any, bool]](), True
            while more:
                fresh = tail.read(most)
                steps += [(row.get("step"), copied) for row, copied in fresh.rows]
                more = fresh.more
            return steps

        return read


@pytest.fixture(params=["local", "remote"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    if request.param == "local":
        return Desk(LocalStore(str(tmp_path / "root")))
    return Desk(open_store(f"memory://metrics-files-{tmp_path.name}"))


@pytest.mark.parametrize("most", [60, 10**6])
def test_a_csv_file_is_followed(desk: Desk, most: int):
    read = desk.tail(most=most)
    assert read() == []
    desk.write("progress.csv", LIGHTNING[:-8])
    assert read() == [(49, False), (99, False)]
    desk.write("progress.csv", LIGHTNING)
    assert read()[-1:] == [(99, False)]
    desk.write("progress.csv", "new," + LIGHTNING.replace("\n", "\n,"))  # a longer header
    assert read() == [(49, False), (99, False), (99, False)]


def test_a_preferred_file_replaces_another(desk: Desk):
    read = desk.tail()
    desk.write("progress.csv", "step,a\n1,1\n")
    assert read() == [(1, False)]
    desk.write("metrics.jsonl", '{"step": 7}\n')
    assert read() == [(7, False)]
    desk.write("progress.csv", "step,a\n1,1\n2,1\n")
    assert read() == []


def test_rows_copied_by_a_resumed_attempt_are_marked(desk: Desk):
    desk.write("metrics.csv", "step,a\n1,1\n2,1\n")
    desk.write("metrics.csv", "step,a\n1,1\n2,1\n3,1\n", attempt=2)
    assert desk.tail(2)() == [(1, True), (2, True), (3, False)]


def test_the_registry_reads_folders_with_only_a_csv_file(tmp_path: Path, home: Path):
    texts = {"a/metrics.csv": LIGHTNING, "b/progress.csv": RLLIB + "1,2,3,4,5,6\n"}
    for name, text in texts.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    registry = Registry(str(tmp_path / "root"))
    for _ in range(2):
        frame = registry.metrics(keys=["val_loss", "train_loss"])
        assert frame["step"].tolist() == [49, 99]
        assert frame["val_loss"].dropna().tolist() == [0.75]
    whole = json.loads(registry.metrics().query("step == 1").to_json(orient="records"))
    assert whole[0]["date"] == "2026-11-26, noon"
    assert registry.problems == ["./b: progress.csv: 1 malformed line skipped"]
    assert [reached(registry.run(name)).step for name in ("a", "b")] == [99, 2]
    follower = registry.follow()
    with (tmp_path / "root/a/metrics.csv").open("a") as file:
        file.write("1,149,0.125,\n")
    [news] = follower.poll()
    assert news.rows == [{"epoch": 1, "step": 149, "train_loss": 0.125}] and not news.again
