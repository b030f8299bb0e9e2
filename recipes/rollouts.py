"""What was sampled, and what it was worth: rewards, metrics and transcripts.

The metrics, the `*_rollout_summaries.jsonl` and the `*_logtree.json` have tinker-cookbook's
names and shapes, so that readers of its runs read these. An episode is one turn, a question, an
answer, a reward; or several, between which an environment writes.
"""

import html
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from .tasks import Conversation


class Problem(NamedTuple):
    """A question: as messages, as the tokens of a prompt, and what answers it.

    `end` is the token that ends an answer; `size` the tokens of the right one with its end. `tag`
    is a name for it, where it has one.
    """

    messages: Conversation
    prompt: list[int]
    answer: str
    end: int
    size: int
    tag: str = ""


class Turn(NamedTuple):
    """One turn of several: the tokens that the environment wrote before it, how many the model then
    wrote, what they say, whether the model ended it, and what came of it. A `fresh` one sees none
    of those before it: `before` is its whole prompt."""

    before: list[int]
    size: int
    text: str
    ended: bool
    output: str
    metrics: dict[str, float]
    fresh: bool = False


class Rollout(NamedTuple):
    """An answer that was sampled: tokens, the logprob of each, the text they make.

    `ended` says whether the model ended it; if not, it ran into the limit. Of several `turns`, the
    tokens are those of all; `about` is what else was measured of such an episode. `likeliest` are
    the likeliest values of each token with their logprobs, where they were asked for.
    """

    tokens: list[int]
    logprobs: list[float]
    text: str
    ended: bool
    reward: float
    correct: bool
    turns: tuple[Turn, ...] = ()
    about: Mapping[str, float] = {}
    likeliest: tuple[Sequence[tuple[int, float]], ...] = ()


class Group(NamedTuple):
    """The answers to one question."""

    problem: Problem
    rollouts: list[Rollout]

    @property
    def rewards(self) -> list[float]:
        """The reward of each."""
        return [rollout.reward for rollout in self.rollouts]

    @property
    def constant(self) -> bool:
        """Whether all are worth the same, so that there is nothing to learn from them."""
        return len(set(self.rewards)) <= 1


class Segment(NamedTuple):
    """A part of an episode that one sequence of tokens holds: its prompt, what was sampled behind
    it, and which of the episode's sampled tokens those are."""

    prompt: list[int]
    rollout: Rollout
    places: slice


def segments(prompt: list[int], rollout: Rollout) -> list[Segment]:
    """An episode, cut where its model began anew; most are one segment."""
    starts = [number for number, turn in enumerate(rollout.turns) if number and turn.fresh]
    if not starts:
        return [Segment(prompt, rollout, slice(0, len(rollout.tokens)))]
    found: list[Segment] = []
    taken = 0
    for start, end in zip([0, *starts], [*starts, len(rollout.turns)], strict=True):
        turns = list(rollout.turns[start:end])
        if start:
            prompt = turns[0].before
            turns[0] = turns[0]._replace(before=[], fresh=False)
        places = slice(taken, taken + sum(turn.size for turn in turns))
        taken = places.stop
        own = rollout._replace(
            tokens=rollout.tokens[places], logprobs=rollout.logprobs[places], turns=tuple(turns)
        )
        found.append(Segment(prompt, own, places))
    return found


def whole(prompt: list[int], rollout: Rollout) -> tuple[list[int], list[int]]:
    """All tokens of a segment, from its prompt to its last sampled one, and the places of those
    that were sampled."""
    if not rollout.turns:
        tokens = prompt + rollout.tokens
        return tokens, list(range(len(prompt), len(tokens)))
    tokens, places, taken = list(prompt), list[int](), 0
    for turn in rollout.turns:
        tokens += turn.before
        places += range(len(tokens), len(tokens) + turn.size)
        tokens += rollout.tokens[taken : taken + turn.size]
        taken += turn.size
    return tokens, places


def whole_after(rollout: Rollout) -> tuple[int, list[int]]:
    """How many tokens an episode has behind its prompt, and where the sampled ones are there."""
    tokens, places = whole([], rollout)
    return len(tokens), places


def exact(answer: str, text: str, ended: bool) -> bool:
    """Whether a text is the answer and ends there."""
    return ended and text == answer


def share_right(answer: str, text: str, ended: bool) -> float:
    """The share of positions that are right: 1.0 for exactly the answer.

    Of as many positions as the longer of the two has, so that a long text earns little; a text
    that has not ended is one longer. To end a text earns nothing by itself: the model would
    learn that first, and stop trying letters before it has found the right ones.
    """
    right = sum(a == b for a, b in zip(answer, text, strict=False))
    longer = max(len(answer), len(text) + (not ended))
    return right / longer if longer else 1.0


def metrics_of(groups: Sequence[Group]) -> dict[str, float]:
    """Means over all episodes, `env/all/...`, and how the groups divide."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    count = len(rollouts)
    sampled = sum(len(rollout.tokens) for rollout in rollouts)
    turns = sum(len(rollout.turns) or 1 for rollout in rollouts)
    asked = sum(len(group.problem.prompt) * len(group.rollouts) for group in groups)
    asked += sum(len(turn.before) for rollout in rollouts for turn in rollout.turns)
    good = sum(group.constant and group.rewards[0] >= 0.5 for group in groups)
    mixed = sum(not group.constant for group in groups)
    values = {
        "reward/total": sum(rollout.reward for rollout in rollouts) / count,
        "correct": sum(rollout.correct for rollout in rollouts) / count,
        "format": sum(rollout.ended for rollout in rollouts) / count,
        "ac_tokens_per_turn": sampled / turns,
        "ob_tokens_per_turn": asked / turns,
        "turns_per_episode": turns / count,
        "total_episodes": count,
        "total_turns": turns,
        "total_ac_tokens": sampled,
        "total_ob_tokens": asked,
        "by_group/frac_mixed": mixed / len(groups),
        "by_group/frac_all_good": good / len(groups),
        "by_group/frac_all_bad": (len(groups) - mixed - good) / len(groups),
    }
    return {f"env/all/{key}": value for key, value in values.items()}


def held_out_metrics(found: Mapping[str, float]) -> dict[str, float]:
    """The metrics of an evaluation, from what `metrics_of` says of its episodes."""
    return {
        "test/reward": found["env/all/reward/total"],
        "test/accuracy": found["env/all/correct"],
        **{f"test/{key}": value for key, value in found.items()},
    }


def summaries(
    groups: Sequence[Group], split: str, step: int, tag: str, sampled_at: int | None = None
) -> str:
    """A line of JSON for each episode. `sampled_at` is the step whose weights have sampled them, if
    not this one."""
    records = [
        {
            "schema_version": 1,
            "split": split,
            "iteration": step,
            "group_idx": group_index,
            "traj_idx": index,
            "tags": [tag, *([group.problem.tag] if group.problem.tag else [])],
            "sampling_client_step": step if sampled_at is None else sampled_at,
            "total_reward": rollout.reward,
            "final_reward": 0.0,  # what a whole group is rewarded for: nothing here
            "trajectory_metrics": dict(rollout.about),
            "steps": _turns(group.problem, rollout),
            "final_ob_len": 0,
        }
        for group_index, group in enumerate(groups)
        for index, rollout in enumerate(group.rollouts)
    ]
    return "".join(json.dumps(record) + "\n" for record in records)


def _asked(problem: Problem) -> str:
    return problem.messages[-1]["content"]


def _turns(problem: Problem, rollout: Rollout) -> list[dict[str, Any]]:
    """The turns of an episode; its reward comes with the last."""
    if not rollout.turns:
        return [_turn(problem, rollout)]
    last = len(rollout.turns) - 1
    return [
        {
            "step_idx": number,
            "ob_len": len(turn.before) + (0 if number else len(problem.prompt)),
            "ac_len": turn.size,
            "reward": rollout.reward if number == last else 0.0,
            "episode_done": number == last,
            "metrics": {
                "format": float(turn.ended),
                **({} if turn.ended else {"stop/max_tokens": 1.0}),
                **turn.metrics,
            },
            "logs": {
                **({} if number else {"item": problem.tag, "question": _asked(problem)}),
                "response": turn.text,
                "output": turn.output,
            },
        }
        for number, turn in enumerate(rollout.turns)
    ]


def _turn(problem: Problem, rollout: Rollout) -> dict[str, Any]:
    # As tinker-cookbook says why a turn has ended: a key of its own where it was cut off.
    cut = {} if rollout.ended else {"stop/max_tokens": 1.0}
    return {
        "step_idx": 0,
        "ob_len": len(problem.prompt),
        "ac_len": len(rollout.tokens),
        "reward": rollout.reward,
        "episode_done": True,
        "metrics": {"format": float(rollout.ended), "correct": float(rollout.correct), **cut},
        "logs": {
            "question": _asked(problem),
            "response": rollout.text,
            "reference_answer": problem.answer,
        },
    }


def transcript(title: str, groups: Sequence[Group], now: datetime) -> str:
    """The episodes of some groups to read, as a tree of elements in JSON (a logtree)."""
    body = [
        _node("h1", "lt-title", html.escape(title)),
        _node("div", "lt-subtitle", f"Generated {now.isoformat(timespec='seconds')}"),
        *(_section(2, "Group Rollout", *_episodes(group)) for group in groups),
    ]
    tree = {
        "title": title,
        "started_at": now.isoformat(),
        "path": None,
        "root": _node("body", "lt-root", *body),
    }
    return json.dumps(tree, indent=1) + "\n"


def _episodes(group: Group) -> list[dict[str, Any]]:
    problem = group.problem
    shown: list[dict[str, Any]] = []
    for rollout in group.rollouts:
        said = [{"role": "assistant", "content": rollout.text}]
        if rollout.turns:
            said = [
                {"role": role, "content": text}
                for turn in rollout.turns
                for role, text in (("assistant", turn.text), ("tool", turn.output))
            ]
        components = {
            "reference_answer": problem.answer,
            "format_valid": rollout.ended,
            "correct": rollout.correct,
            "reward": f"{rollout.reward:.3f}",
        }
        shown += [
            _section(3, "Prompt", _conversation(problem.messages)),
            _section(3, "Policy Response", _conversation(said)),
            _section(3, "Reward", *_table("Reward components", components)),
        ]
    return shown


def _node(tag: str, class_: str | None, *children: Any) -> dict[str, Any]:
    attributes = {} if class_ is None else {"class": class_}
    return {"tag": tag, "attrs": attributes, "children": list(children)}


def _section(level: int, title: str, *children: dict[str, Any]) -> dict[str, Any]:
    heading = _node(f"h{level}", f"lt-h{level}", html.escape(title))
    return _node("section", "lt-section", heading, _node("div", "lt-section-body", *children))


def _conversation(messages: Conversation) -> dict[str, Any]:
    return _node("div", None) | {"data": {"type": "conversation", "messages": messages}}


def _table(caption: str, values: dict[str, object]) -> list[dict[str, Any]]:
    head = _node("tr", None, _node("th", None, "key"), _node("th", None, "value"))
    rows = [
        _node("tr", None, *(_node("td", None, html.escape(str(cell))) for cell in pair))
        for pair in values.items()
    ]
    return [
        _node("div", "lt-table-caption", html.escape(caption)),
        _node("table", "lt-table", _node("thead", None, head), _node("tbody", None, *rows)),
    ]
