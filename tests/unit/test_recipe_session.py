"""Orders of a session: which are repeated after a kill. The steps themselves are tested in
tests/e2e/test_sessions.py."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sweeper.recipes import rundir, session_rl
from sweeper.recipes.service import RecipeError, Stop
from sweeper.recipes.session import Orders, Session, session_folder
from sweeper.recipes.trainer import Diverged, Stopwatch

REWARD = "env/all/reward/total"


class Counting(Session):
    """A session whose steps only log a row; step `broken` diverges."""

    shown = (REWARD,)
    broken = -1
    rewards: tuple[float, ...] = ()

    def __init__(self, folder: Path, **settings: Any) -> None:
        settings = {"max_steps": 20, "idle_minutes": 1e-9} | settings
        self.config = session_rl.Config(**settings)
        self.run = rundir.open_run(str(folder / "run"), {}, frozenset())
        self.run.drop_steps_from(self.run.start_step)
        self.stop, self.parent, self.stepped = Stop(), None, list[int]()
        self.tracker = SimpleNamespace(mark={}, log=lambda *_: None)
        self.given_now: Any = None
        self.last_line, self.stopwatch = 0.0, Stopwatch()
        self.timed = self.stopwatch.span

    prepare = begin_evaluation = sampler_now = lambda *_: None  # type: ignore[assignment]

    def begin(self) -> None:
        pass

    def take(self, conversations: Any) -> None:
        self.given_now = conversations

    def advance(self, step: int) -> None:
        self.stepped.append(step)
        reward = self.rewards[step] if step < len(self.rewards) else 0.5
        self.log(step, {REWARD: float("nan") if step == self.broken else reward})

    def save(self, step: int) -> Any:
        return SimpleNamespace(path=f"tinker://x/weights/{step}")

    def wait(self, request: Any) -> Any:
        return request


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in (("ROOT", str(tmp_path)), ("SWEEP", "agent-x"), ("RUN", "abc")):
        monkeypatch.setenv(f"SWEEPER_{name}", value)
    return tmp_path


def order(place: Path, *orders: dict[str, Any]) -> None:
    folder = place / "agent-x" / "session" / "abc" / "orders"
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.iterdir()))
    for document in orders:
        number += 1
        (folder / f"{number:06d}.json").write_text(json.dumps(document))


def answers(place: Path) -> list[dict[str, Any]]:
    folder = place / "agent-x" / "session" / "abc" / "answers"
    return [json.loads(path.read_text()) for path in sorted(folder.iterdir())]


def train(steps: int, **more: Any) -> dict[str, Any]:
    return {"kind": "train", "steps": steps, **more}


def test_what_was_ordered_since_the_checkpoint_is_done_again_and_no_more(place: Path) -> None:
    order(place, train(2), train(3), train(1))
    first = Counting(place, checkpoint_steps=4)
    advance = first.advance

    def killed(step: int) -> None:
        if step == 5:  # in the third order, after the checkpoint in the second
            raise KeyboardInterrupt
        advance(step)

    first.advance = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        first.train_steps()
    assert first.stepped == [0, 1, 2, 3, 4]
    assert [answer["order"] for answer in answers(place)] == [1, 2]
    record = first.run.last_record or {}
    assert (record["batch"], record["order"], record["order_begun"]) == (4, 2, 2)

    order(place, {"kind": "finish"})
    second = Counting(place, checkpoint_steps=4)
    assert second.train_steps() == 6
    assert second.stepped == [4, 5]
    assert [row["step"] for row in second.run.read_metrics()] == [0, 1, 2, 3, 4, 5]
    done = answers(place)
    assert [(answer["order"], answer["step"], answer["steps"]) for answer in done] == [
        (1, 2, 2), (2, 5, 3), (3, 6, 1),
    ]  # fmt: skip
    assert [row["step"] for row in done[2]["rows"]] == [5]


def test_a_step_that_diverges_is_told_and_left_out_afterwards(place: Path) -> None:
    order(place, train(1), train(2), train(1))
    first = Counting(place)
    first.broken = 2
    with pytest.raises(Diverged):
        first.train_steps()
    answer = answers(place)[1]
    assert "training has diverged" in answer["error"] and "without this order" in answer["error"]
    second = Counting(place)
    assert second.train_steps() == 2  # the first order and the third, from the beginning
    assert second.stepped == [0, 1] and len(answers(place)) == 3


def test_a_checkpoint_by_itself_once_steps_and_reward_are_enough(place: Path) -> None:
    order(place, train(8))
    session = Counting(place, checkpoint_steps=2, checkpoint_reward=0.5)
    session.rewards = (0.9, 0.1, 0.1, 0.6, 0.9, 0.1, 0.9, 0.9)
    session.train_steps()
    records = (place / "run" / "checkpoints.jsonl").read_text().splitlines()
    assert [json.loads(line)["batch"] for line in records] == [4, 7]


@pytest.mark.parametrize(
    ("impossible", "error"),
    [
        (train(21), "max_steps=20 leaves 20 steps"),
        (train(1, data=[{"prompt": "q"}]), 'data[0]: expected {"messages"'),
        ({"kind": "shell"}, "'shell' is not an order"),
    ],
)
def test_an_order_that_cannot_be_done_changes_nothing(
    place: Path, impossible: dict[str, Any], error: str
) -> None:
    order(place, impossible, train(1, data=[{"prompt": "q", "answer": "a"}]))
    session = Counting(place)
    assert session.train_steps() == 1  # it continues, and finishes as no order follows
    refused, done = answers(place)
    assert error in refused["error"] and done["step"] == 1
    assert [message["content"] for message in session.given_now[0]] == ["q", "a"]


def test_an_answer_is_given_once(tmp_path: Path) -> None:
    orders = Orders(str(tmp_path))
    orders.put_answer(1, {"step": 3})
    orders.put_answer(1, {"step": 4})
    assert (orders.answer(1) or {})["step"] == 3 and orders.order(1) is None


def test_a_session_is_started_by_a_worker() -> None:
    with pytest.raises(RecipeError, match="cannot be started by hand"):
        session_folder({})


def test_a_stop_behind_a_save_makes_no_other_of_the_same_step(place: Path) -> None:
    order(place, train(2), {"kind": "save", "name": "mine"})
    session = Counting(place, checkpoint_steps=2)
    names = list[str]()

    def saved(name: str, **_: Any) -> Any:
        assert name not in names  # the service refuses a name twice
        names.append(name)
        return SimpleNamespace(path=f"tinker://x/weights/{name}")

    session.training = SimpleNamespace(
        save_state=saved,
        save_weights_for_sampler=lambda name: SimpleNamespace(path=f"tinker://x/sampler/{name}"),
    )
    session.save = lambda step: saved(f"{step:06d}")  # type: ignore[method-assign]
    save = session.do_save

    def stopped(given: Any) -> Any:
        session.stop.signum = 15
        return save(given)

    session.do_save = stopped  # type: ignore[method-assign]
    assert not session.train(session.tracker)
    assert names == ["000002", "mine"]
