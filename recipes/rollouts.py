"""Sampled episodes and their rewards, metrics and transcripts, in tinker-cookbook's names and
shapes. An episode has one turn, or several with outputs of an environment between them."""

import html
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from . import chat
from .service import RecipeError
from .tasks import Conversation


class Problem(NamedTuple):
    """A question with its right answer. `prompt` has the tokens of the rendered question. `end` is
    the token that ends an answer. `size` is the number of tokens of the right answer, including
    `end`. `tag` is the name of the task ("" if it has none). `written` is the right answer in the
    data. `answer` is the same after rendering: the chat template may add empty thoughts."""

    messages: Conversation
    prompt: list[int]
    answer: str
    end: int
    size: int
    tag: str = ""
    written: str = ""


def problems_of(
    tokenizer: Any, conversations: Sequence[Conversation], config: Any
) -> list[Problem]:
    """Convert conversations to problems. The last message is the right answer. A problem is left
    out if its prompt plus `max_tokens` exceeds `max_length`. Raises RecipeError if none is left."""
    problems: list[Problem] = []
    for conversation in conversations:
        example = chat.render(tokenizer, conversation)[-1]
        prompt, answer = example.tokens[: example.answer], example.tokens[example.answer :]
        if len(prompt) + config.max_tokens > config.max_length:
            continue
        text = text_of(tokenizer, answer)
        problem = Problem(conversation[:-1], prompt, text, answer[-1], len(answer))
        problems.append(problem._replace(written=conversation[-1]["content"]))
    if not problems:
        raise RecipeError(
            f"max_length={config.max_length} is too short: no question fits "
            f"with max_tokens={config.max_tokens} for its answer"
        )
    if left_out := len(conversations) - len(problems):
        count = f"{left_out} of {len(conversations)} questions"
        limit = f"max_length={config.max_length} (question and max_tokens together)"
        print(f"{count} left out: longer than {limit}", flush=True)
    return problems


def text_of(tokenizer: Any, tokens: Sequence[int]) -> str:
    """Return the text of an answer, without its end token."""
    return tokenizer.decode(list(tokens), skip_special_tokens=True).strip()


class Turn(NamedTuple):
    """A turn of an episode. `before` has the tokens that the environment wrote before the turn.
    `size` and `text` are the token count and the text of the model's answer. `ended` is False if
    the answer was cut off. `output` is the environment's output. A `fresh` turn does not see
    earlier turns, and its `before` is the whole prompt."""

    before: list[int]
    size: int
    text: str
    ended: bool
    output: str
    metrics: dict[str, float]
    fresh: bool = False


class Rollout(NamedTuple):
    """A sampled answer: the tokens, the logprob of each token, and the text.

    `ended` is False if the answer was cut off at the token limit. With several `turns`, the
    answer joins the tokens of all turns, and `about` has metrics of the whole episode. If
    requested, `likeliest` has the likeliest tokens at each position with their logprobs.
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
        """The reward of each answer."""
        return [rollout.reward for rollout in self.rollouts]

    @property
    def constant(self) -> bool:
        """Whether all rewards are equal."""
        return len(set(self.rewards)) <= 1


class Segment(NamedTuple):
    """A part of an episode that is split before each `fresh` turn (see `Turn`). `rollout` has the
    tokens of the part. `places` is their slice of the episode's sampled tokens."""

    prompt: list[int]
    rollout: Rollout
    places: slice


def segments(prompt: list[int], rollout: Rollout) -> list[Segment]:
    """Split an episode before each `fresh` turn (see `Turn`)."""
    starts = [number for number, turn in enumerate(rollout.turns) if number and turn.fresh]
    if not starts:
        return [Segment(prompt, rollout, slice(0, len(rollout.tokens)))]
    parts: list[Segment] = []
    taken = 0
    for start, end in zip([0, *starts], [*starts, len(rollout.turns)], strict=True):
        turns = list(rollout.turns[start:end])
        if start:
            prompt = turns[0].before
            turns[0] = turns[0]._replace(before=[], fresh=False)
        places = slice(taken, taken + sum(turn.size for turn in turns))
        taken = places.stop
        part = rollout._replace(
            tokens=rollout.tokens[places], logprobs=rollout.logprobs[places], turns=tuple(turns)
        )
        parts.append(Segment(prompt, part, places))
    return parts


def whole(prompt: list[int], rollout: Rollout) -> tuple[list[int], list[int]]:
    """Return all tokens of a segment (given as its prompt and its rollout), and the positions of
    the sampled tokens among them."""
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
    """Return the number of a rollout's tokens, sampled or not, without the prompt. Also return the
    positions of the sampled tokens; position 0 is the first token after the prompt."""
    tokens, places = whole([], rollout)
    return len(tokens), places


def exact(answer: str, text: str, ended: bool) -> bool:
    """Return whether a text is exactly the answer, and the model ended it."""
    return ended and text == answer


def share_right(answer: str, text: str, ended: bool) -> float:
    """Return the share of characters that are right: 1.0 for exactly the answer.

    The share is relative to the longer of `answer` and `text`, so that extra characters lower it. A
    text that was cut off counts as one character longer. There is no separate reward for ending a
    text. With one, the model would learn to end texts early, before it has tried all letters.
    """
    right = sum(a == b for a, b in zip(answer, text, strict=False))
    longer = max(len(answer), len(text) + (not ended))
    return right / longer if longer else 1.0


def metrics_of(groups: Sequence[Group]) -> dict[str, float]:
    """Return metrics of all episodes, `env/all/...`: means, totals, and the shares of mixed, all
    good and all bad groups. A group is mixed if its rewards differ. A group with equal rewards is
    all good if they are at least 0.5, else all bad."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    count = len(rollouts)
    sampled = sum(len(rollout.tokens) for rollout in rollouts)
    turns = sum(len(rollout.turns) or 1 for rollout in rollouts)
    prompt_tokens = sum(len(group.problem.prompt) * len(group.rollouts) for group in groups)
    prompt_tokens += sum(len(turn.before) for rollout in rollouts for turn in rollout.turns)
    good = sum(group.constant and group.rewards[0] >= 0.5 for group in groups)
    mixed = sum(not group.constant for group in groups)
    values = {
        "reward/total": sum(rollout.reward for rollout in rollouts) / count,
        "correct": sum(rollout.correct for rollout in rollouts) / count,
        "format": sum(rollout.ended for rollout in rollouts) / count,
        "ac_tokens_per_turn": sampled / turns,
        "ob_tokens_per_turn": prompt_tokens / turns,
        "turns_per_episode": turns / count,
        "total_episodes": count,
        "total_turns": turns,
        "total_ac_tokens": sampled,
        "total_ob_tokens": prompt_tokens,
        "by_group/frac_mixed": mixed / len(groups),
        "by_group/frac_all_good": good / len(groups),
        "by_group/frac_all_bad": (len(groups) - mixed - good) / len(groups),
    }
    return {f"env/all/{key}": value for key, value in values.items()}


def held_out_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Put `test/` before the name of each metric, and add `test/reward` and `test/accuracy`."""
    return {
        "test/reward": metrics["env/all/reward/total"],
        "test/accuracy": metrics["env/all/correct"],
        **{f"test/{key}": value for key, value in metrics.items()},
    }


def summaries(
    groups: Sequence[Group], split: str, step: int, tag: str, sampled_at: int | None = None
) -> str:
    """Return a line of JSON for each episode. `sampled_at` is the step whose weights sampled the
    episodes; None means `step`."""
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
            "final_reward": 0.0,  # reward of a whole group: not used here
            "trajectory_metrics": dict(rollout.about),
            "steps": _turns(group.problem, rollout),
            "final_ob_len": 0,
        }
        for group_index, group in enumerate(groups)
        for index, rollout in enumerate(group.rollouts)
    ]
    return "".join(json.dumps(record) + "\n" for record in records)


def _question(problem: Problem) -> str:
    return problem.messages[-1]["content"]


def _turns(problem: Problem, rollout: Rollout) -> list[dict[str, Any]]:
    """Return a JSON object for each turn of an episode. The last turn has the reward."""
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
                **({} if number else {"item": problem.tag, "question": _question(problem)}),
                "response": turn.text,
                "output": turn.output,
            },
        }
        for number, turn in enumerate(rollout.turns)
    ]


def _turn(problem: Problem, rollout: Rollout) -> dict[str, Any]:
    # tinker-cookbook's convention: an extra key if the answer was cut off.
    cut = {} if rollout.ended else {"stop/max_tokens": 1.0}
    return {
        "step_idx": 0,
        "ob_len": len(problem.prompt),
        "ac_len": len(rollout.tokens),
        "reward": rollout.reward,
        "episode_done": True,
        "metrics": {"format": float(rollout.ended), "correct": float(rollout.correct), **cut},
        "logs": {
            "question": _question(problem),
            "response": rollout.text,
            "reference_answer": problem.answer,
        },
    }


def transcript(title: str, groups: Sequence[Group], now: datetime) -> str:
    """Return the episodes of groups as a logtree, a log in tinker-cookbook's JSON format."""
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
        messages = [{"role": "assistant", "content": rollout.text}]
        if rollout.turns:
            messages = [
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
            _section(3, "Policy Response", _conversation(messages)),
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
