import json
from datetime import UTC, datetime

import pytest

from sweeper.recipes import rollouts
from sweeper.recipes.rewards import FunctionReward
from sweeper.recipes.rollouts import Group, Problem, Rollout
from sweeper.recipes.sandbox import Function, Scored

PROBLEM = Problem([{"role": "user", "content": "sort <ba>"}], [1, 2, 3], "ab", 0, 3)


def answered(text, reward, ended=True):
    tokens = [*text.encode(), *([0] if ended else [])]
    return Rollout(tokens, [-1.0] * len(tokens), text, ended, reward, text == "ab" and ended)


GROUPS = [
    Group(PROBLEM, [answered("ab", 1.0), answered("a<", 0.5)]),
    Group(PROBLEM, [answered("zz", 0.0), answered("zzz", 0.0, ended=False)]),
    Group(PROBLEM, [answered("ab", 1.0), answered("ab", 1.0)]),
]


@pytest.mark.parametrize(
    ("text", "ended", "share"),
    [
        ("abc", True, 1.0),
        ("abd", True, 2 / 3),
        ("abc", False, 3 / 4),
        ("abcd", True, 3 / 4),
        ("ab", True, 2 / 3),
        ("", True, 0.0),
        ("xbc", True, 2 / 3),
        ("bca", True, 0.0),
        ("abc" * 10, False, 3 / 31),
    ],
)
def test_the_dense_reward_is_the_share_of_positions_right(text, ended, share):
    assert rollouts.share_right("abc", text, ended) == pytest.approx(share)


def test_the_sparse_reward_is_for_the_whole_answer_and_its_end():
    rewards = [rollouts.exact("7", *answer) for answer in (("7", True), ("7", False), ("77", True))]
    assert rewards == [True, False, False]


def test_a_group_is_constant_where_all_earned_the_same():
    assert [group.constant for group in GROUPS] == [False, True, True]


def test_metrics_are_means_over_episodes():
    metrics = rollouts.metrics_of(GROUPS)
    assert metrics["env/all/reward/total"] == pytest.approx(3.5 / 6)
    assert metrics["env/all/correct"] == pytest.approx(3 / 6)
    assert metrics["env/all/format"] == pytest.approx(5 / 6)
    assert metrics["env/all/total_episodes"] == 6
    assert metrics["env/all/ob_tokens_per_turn"] == 3
    assert metrics["env/all/total_ac_tokens"] == 18
    shares = {k: v for k, v in metrics.items() if k.startswith("env/all/by_group/")}
    assert shares == pytest.approx(
        {f"env/all/by_group/frac_{kind}": 1 / 3 for kind in ("mixed", "all_good", "all_bad")}
    )


def test_a_summary_is_a_line_for_each_episode():
    lines = rollouts.summaries(GROUPS, "eval/test", 7, "sorting").splitlines()
    records = [json.loads(line) for line in lines]
    assert [(r["group_idx"], r["traj_idx"]) for r in records] == [
        (group, index) for group in range(3) for index in range(2)
    ]
    assert [r["total_reward"] for r in records] == [1.0, 0.5, 0.0, 0.0, 1.0, 1.0]
    first = records[1]
    assert (first["schema_version"], first["split"], first["iteration"]) == (1, "eval/test", 7)
    assert (first["tags"], first["sampling_client_step"]) == (["sorting"], 7)
    [turn] = first["steps"]
    assert (turn["ob_len"], turn["ac_len"], turn["reward"]) == (3, 3, 0.5)
    assert turn["metrics"] == {"format": 1.0, "correct": 0.0}
    assert turn["logs"]["response"] == "a<"
    assert total_of(first) == first["total_reward"]


def total_of(record):
    return sum(step["reward"] for step in record["steps"]) + record["final_reward"]


def nodes(node):
    """Yield all elements of a tree; check the keys of each."""
    if isinstance(node, str):
        return
    assert {"tag", "attrs", "children"} <= node.keys() <= {"tag", "attrs", "children", "data"}
    yield node
    for child in node["children"]:
        yield from nodes(child)


def test_a_transcript_is_a_tree_with_the_conversations_as_data():
    now = datetime(2026, 1, 2, tzinfo=UTC)
    tree = json.loads(rollouts.transcript("RL Iteration 3", GROUPS[:1], now))
    assert set(tree) == {"title", "started_at", "path", "root"}
    assert datetime.fromisoformat(tree["started_at"]) == now
    elements = list(nodes(tree["root"]))
    conversations = [node["data"]["messages"] for node in elements if "data" in node]
    assert conversations == [
        PROBLEM.messages,
        [{"role": "assistant", "content": "ab"}],
        PROBLEM.messages,
        [{"role": "assistant", "content": "a<"}],
    ]
    # Other elements are HTML with escaped text.
    cells = [child for node in elements if node["tag"] == "td" for child in node["children"]]
    assert "reference_answer" in cells
    assert cells.count("1.000") == 1


class Echo(Function):
    """A function that records its arguments."""

    def __init__(self):
        self.calls = []

    def __call__(self, question, response, answer):
        self.calls.append((question, response, answer))
        return Scored(1.0)

    def close(self):
        pass


def test_a_reward_function_gets_the_answer_as_the_data_have_it():
    """Chat templates of reasoning models put (empty) thoughts before the answer."""
    problem = PROBLEM._replace(answer="<think></think>ab", written="ab")
    function = Echo()
    reward = FunctionReward(function)
    reward.check([problem])
    reward.begin(problem, "<think>hm</think>ab", True)()
    assert function.calls == [
        ("sort <ba>", "<think></think>ab", "ab"),
        ("sort <ba>", "<think>hm</think>ab", "ab"),
    ]
