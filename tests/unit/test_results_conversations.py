"""Transcripts are assigned to their trajectory, or marked as the group's."""

from collections.abc import Sequence
from typing import Any

from sweeper.results.conversations import Transcript, groups_of

Node = dict[str, Any]


def node(tag: str, *children: Any) -> Node:
    return {"tag": tag, "attrs": {}, "children": list(children)}


def section(title: str, *children: Any) -> Node:
    return node("section", node("h3", title), node("div", *children))


def talk(role: str, content: str) -> Node:
    data = {"type": "conversation", "messages": [{"role": role, "content": content}]}
    return node("div") | {"data": data}


def table(**values: object) -> Node:
    head = node("tr", node("th", "key"), node("th", "value"))
    rows = (node("tr", node("td", key), node("td", str(value))) for key, value in values.items())
    return node("table", node("thead", head), node("tbody", *rows))


def record(*turns: tuple[int, int], reward: float = 0.0, **logs: str) -> dict[str, Any]:
    """Return the summary of a trajectory whose turns read and wrote these numbers of tokens."""
    steps = [{"ob_len": ob, "ac_len": ac, "reward": 0.0, "logs": logs} for ob, ac in turns]
    steps[-1]["reward"] = reward
    return {"steps": steps}


def details(records: Sequence[dict[str, Any]]) -> Node:
    """Return the section of numbers that tinker-cookbook adds to each group."""
    episodes: list[Node] = []
    for number, summary in enumerate(records):
        turns = [
            section(f"Turn {k}", table(ob_len=s["ob_len"], ac_len=s["ac_len"], step_reward="0.000"))
            for k, s in enumerate(summary["steps"], start=1)
        ]
        inside = section(
            "Episode Details", *turns, table(num_turns=len(turns), total_return="0.000")
        )
        episodes.append(section(f"Trajectory {number} Episode", inside))
    return section("Trajectory Details", *episodes)


def transcripts(
    *groups: tuple[list[Node], list[dict[str, Any]]], **left_out: Any
) -> dict[int, list[Transcript]]:
    sections = [section("Group Rollout", *parts, details(records)) for parts, records in groups]
    summaries = [records for _, records in groups if records is not left_out.get("without")]
    return groups_of({"root": node("body", *sections)}, summaries)


def answered(text: str, reward: float) -> list[Node]:
    """Return a turn of a problem, as its environment logs it."""
    return [
        section("Prompt", talk("user", "2 + 2?")),
        section("Policy Response", talk("assistant", text)),
        section("Reward", table(correct=bool(reward), reward=f"{reward:.3f}")),
    ]


def answers(group: Sequence[Transcript]) -> list[tuple[str, str]]:
    return [
        (next(t for w, t in transcript.spoken if w == "assistant"), transcript.whose)
        for transcript in group
    ]


def test_reordered_answers_are_assigned_by_their_rewards():
    """Trajectories run in parallel: the first to end is logged first."""
    records = [record((9, 3), reward=r) for r in (0.0, 1.0, 0.0)]
    parts = [*answered("4", 1.0), *answered("three", 0.0), *answered("five", 0.0)]
    assert answers(transcripts((parts, records))[0]) == [
        ("three", "order"),
        ("4", "trajectory"),
        ("five", "order"),
    ]
    alike = [*answered("4", 1.0), *answered("five", 0.0), *answered("five", 0.0)]
    assert {whose for _, whose in answers(transcripts((alike, records))[0])} == {"trajectory"}


def test_a_logged_answer_belongs_to_its_trajectory():
    records = [record((9, 3), response="b"), record((9, 3), response="a")]
    parts = [*answered("a", 0.0), *answered("b", 0.0)]
    assert answers(transcripts((parts, records))[0]) == [("b", "trajectory"), ("a", "trajectory")]


def test_numbered_completions_belong_to_that_trajectory():
    """Preferences: all completions of a group are logged together, then their comparisons."""
    records = [record((9, n)) for n in (1, 2, 3)]
    parts = section(
        "compute_group_rewards",
        section("Prompt", talk("user", "Who are you?")),
        *(section(f"Completion {n}", talk("assistant", f"I am {n}")) for n in (0, 2, 1)),
        section("Pairwise Comparisons", node("p", "Matchup 0: (0 vs 1) - Reward: 1.00")),
    )
    group = transcripts(([parts], records))[0]
    assert [transcript.spoken for transcript in group] == [
        [("user", "Who are you?"), ("assistant", f"I am {n}")] for n in range(3)
    ]
    assert {transcript.whose for transcript in group} == {"trajectory"}


def test_paragraphs_of_a_group_are_marked_as_the_groups():
    lines = [
        node("p", "Turn 1 - Player: Is it &lt;big&gt;?"),
        node("p", "Turn 1 - Answerer: no"),
        node("p", "Game Over"),
    ]
    words = [
        ("Turn 1 - Player", "Is it <big>?"),
        ("Turn 1 - Answerer", "no"),
        ("note", "Game Over"),
    ]
    alone, several = [record((9, 3))], [record((9, 3)), record((9, 4))]
    assert transcripts((lines, alone))[0] == [Transcript(words, "trajectory")]
    assert transcripts((lines, several))[0] == [Transcript(words, "group")] * 2


def test_a_group_without_summaries_does_not_shift_the_others():
    """Groups with equal rewards may be left out of training, and are then in no summary."""
    dropped = [record((5, 1)), record((5, 2))]
    summarised = [record((7, 3), reward=1.0), record((7, 4))]
    by_group = transcripts(
        ([*answered("x", 0.0), *answered("y", 0.0)], dropped),
        ([*answered("right", 1.0), *answered("wrong", 0.0)], summarised),
        without=dropped,
    )
    assert answers(by_group[0]) == [("right", "trajectory"), ("wrong", "trajectory")]
    assert list(by_group) == [0]


def test_numbers_alone_make_an_empty_transcript():
    assert (
        transcripts(([], [record((9, 3)), record((9, 4))]))[0] == [Transcript([], "trajectory")] * 2
    )
