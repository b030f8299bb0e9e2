"""A function from a file in an isolated environment, and as the reward of `rl`."""

import pytest

from sweeper.recipes import rl
from sweeper.recipes.isolated import IsolatedFunction, missing
from sweeper.recipes.rewards import FunctionReward
from sweeper.recipes.rollouts import Problem
from sweeper.recipes.service import RecipeError

TEXT = """
import os, time, socket

LOADED = time.monotonic()

def score(question, response, answer):
    print("this is lost")
    if response == "hang":
        time.sleep(60)
    if response == "stubborn":
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass
    if response == "die":
        os._exit(3)
    if response == "all":
        os.kill(-1, 9)  # all but itself
        os._exit(9)
    if response == "grow":
        return len(bytearray(1 << 31))
    if response == "loaded":
        return LOADED
    if response == "look":
        return float(os.path.exists(answer))
    if response == "net":
        socket.create_connection(("127.0.0.1", 9), 1)
    return float(response == answer)
"""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(missing() is not None, reason=f"no bubblewrap: {missing()}"),
]


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    path = tmp_path_factory.mktemp("apart") / "score.py"
    path.write_text(TEXT)
    made = IsolatedFunction(f"{path}:score", seconds=2)
    yield made
    made.close()


def test_each_call_has_its_score_whatever_the_others_do(apart):
    answers = ["4", "hang", "5", "die", "grow", "stubborn", "4", "all", "4"]
    begun = [apart.begin("2+2", response, "4") for response in answers]
    scores = [score() for score in begun]
    assert [score.value for score in scores] == [1, None, 0, None, None, None, 1, None, 1]
    assert [score.error for score in scores if score.error] == [
        "it took longer than 2 s",
        "its process ended (exit code 3)",
        "MemoryError: it needs more than 512 MB",
        "it took too long",
        "its environment has ended",
    ]


def test_it_sees_nothing_of_this_machine(apart):
    assert apart("", "look", __file__) == (0.0, None)
    assert apart("", "look", "/app/function.py") == (1.0, None)
    assert apart("", "net", "").error is not None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("EXAMPLES = [('a', 'b', 'b', 1), ('a', 'c', 'b', 1)]", "gives 0.0 for EXAMPLES"),
        ("EXAMPLES = [('a', 'die', 'b', 1)]", "EXAMPLES[0]: its process ended"),
        ("EXAMPLES = [1]", "EXAMPLES must be a list"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("del score", "it has no function 'score'"),
        ("def score(", "SyntaxError"),
    ],
)
def test_a_wrong_function_is_refused_before_training(tmp_path, more, message):
    path = tmp_path / "score.py"
    path.write_text(f"{TEXT}\n{more}\n")
    with pytest.raises(RecipeError) as caught:
        made = IsolatedFunction(f"{path}:score")
        try:
            made.check([])
        finally:
            made.close()
    assert message in str(caught.value)


def test_rewards_are_waited_for_together(apart):
    """One process computes all of them."""
    problem = Problem([{"role": "user", "content": "2+2"}], [1], "4", 2, 1, written="4")
    reward = FunctionReward(apart)
    begun = [reward.begin(problem, text, True) for text in ("4", "loaded", "5", "loaded")]
    right, loaded, wrong, again = (score() for score in begun)
    assert (right, wrong) == (1.0, 0.0) and loaded == again
    assert reward.begin(problem, "loaded", True)() > loaded


def test_a_plan_says_what_the_machine_lacks(monkeypatch, tmp_path, request):
    request.addfinalizer(missing.cache_clear)
    missing.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    [line] = rl.lacks({"function_environment": "bubblewrap"})
    assert line.startswith("function_environment=bubblewrap: bwrap is not installed")
    assert rl.lacks({}) == []
