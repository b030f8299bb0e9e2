"""Reads the files of trials of the package `harbor` as episodes: rewards, turns and trajectories,
with exact tokens and logprobs if the agent has recorded them. Does not need the package."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sweeper.sandbox.tasks import Judged

from .rollouts import Rollout, Turn

_NOT_JUDGED = {
    *("AddTestsDirError", "DownloadVerifierDirError", "VerifierTimeoutError"),
    *("RewardFileNotFoundError", "RewardFileEmptyError", "VerifierOutputParseError"),
}
"""Exceptions of a verifier that the agent's actions may have caused: they mean the reward 0."""
_OF_THE_AGENT = {"AgentTimeoutError": "time", "NonZeroAgentExitCodeError": "agent"}
_LONGEST_PROMPT = 4000


class Trial(NamedTuple):
    """A finished trial. If the environment failed, `failed` is the reason, and the results have
    no meaning. A turn is `fresh` if its prompt does not begin with the previous turn's prompt and
    answer, because the agent has summarised or rewritten the history. `exact` is set if all
    tokens were recorded and no turn is `fresh`."""

    task: str
    attempt: int
    rollout: Rollout
    judged: Judged
    trajectory: dict[str, Any]
    exact: bool
    failed: str = ""

    def document(self) -> dict[str, Any]:
        """Return a record of `episodes.jsonl`."""
        rollout = self.rollout
        return {
            "task": self.task,
            "attempt": self.attempt,
            "judged": [dict(self.judged.rewards), self.judged.output, self.judged.wrong],
            "exact": self.exact,
            "rollout": {
                **rollout._asdict(),
                "turns": [turn._asdict() for turn in rollout.turns],
                "about": dict(rollout.about),
            },
            "trajectory": self.trajectory,
        }


def from_document(record: Mapping[str, Any]) -> Trial:
    """Parse a record of `episodes.jsonl`."""
    values = dict(record["rollout"])
    turns = tuple(Turn(**turn) for turn in values.pop("turns"))
    return Trial(
        record["task"],
        record["attempt"],
        Rollout(**values, turns=turns),
        Judged(*record["judged"]),
        record["trajectory"],
        record["exact"],
    )


def read(folder: str, task: str, attempt: int) -> Trial:
    """Read the trial in a folder. Raises ValueError if the folder contains no finished trial."""
    result = _json(os.path.join(folder, "result.json"))
    if not isinstance(result, dict) or not result.get("finished_at"):
        raise ValueError(f"{folder} has no finished trial")
    trajectory = _json(os.path.join(folder, "agent", "trajectory.json"))
    trajectory = trajectory if isinstance(trajectory, dict) else {}
    wrong = str((result.get("exception_info") or {}).get("exception_type") or "")
    judged, failed = _judged(result, wrong), ""
    if wrong and wrong not in _NOT_JUDGED and wrong not in _OF_THE_AGENT and not judged.rewards:
        message = str(result["exception_info"].get("exception_message") or "")
        failed = f"{wrong}: {' '.join(message.split())[:300]}"
    rollout, exact = _rollout(result, trajectory, judged, _OF_THE_AGENT.get(wrong, "done"))
    return Trial(task, attempt, rollout, judged, trajectory, exact, failed)


def _json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _judged(result: Mapping[str, Any], wrong: str) -> Judged:
    recorded = (result.get("verifier_result") or {}).get("rewards") or {}
    steps = result.get("step_results") or []
    output = "\n".join(str(step.get("step_name")) for step in steps)
    rewards = {
        key: float(value)
        for key, value in recorded.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    return Judged(rewards, output, "" if rewards else wrong or "no reward")


def _rollout(
    result: Mapping[str, Any], trajectory: Mapping[str, Any], judged: Judged, stop: str
) -> tuple[Rollout, bool]:
    agent = result.get("agent_result") or {}
    steps = [step for step in trajectory.get("steps") or [] if step.get("source") == "agent"]
    answers, whole = _answers(agent.get("rollout_details") or [])
    turns: list[Turn] = []
    for number in range(max(len(answers), len(steps))):
        text = str(steps[number].get("message") or "") if number < len(steps) else ""
        output = _observed(steps[number]) if number < len(steps) else ""
        if number >= len(answers):
            turns.append(Turn([], 0, text, True, output, {}))
            continue
        answer, before_it = answers[number], answers[number - 1].end if number else []
        fresh = answer.prompt[: len(before_it)] != before_it
        before = answer.prompt if fresh else answer.prompt[len(before_it) :]
        turns.append(Turn(before, len(answer.tokens), text, True, output, {}, fresh))
    linear = whole and not any(turn.fresh for turn in turns)
    about = {
        "solved": float(judged.reward >= 1),
        "seconds": _seconds(result.get("started_at"), result.get("finished_at")),
        "verifier_failure": float(bool(judged.wrong)),
        "exact": float(linear),
        f"stop/{stop}": 1.0,
    }
    for key in ("n_input_tokens", "n_output_tokens", "cost_usd"):
        if isinstance(agent.get(key), int | float):
            about[key] = float(agent[key])
    rollout = Rollout(
        [token for answer in answers for token in answer.tokens],
        [logprob for answer in answers for logprob in answer.logprobs],
        "\n".join(turn.text for turn in turns),
        stop == "done",
        judged.reward,
        judged.reward >= 1,
        tuple(turns),
        about,
    )
    return rollout, linear


class _Answer(NamedTuple):
    """An answer that an agent has recorded: the tokens of its prompt, and the sampled tokens."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]

    @property
    def end(self) -> list[int]:
        """The tokens of the prompt, followed by the sampled tokens."""
        return self.prompt + self.tokens


def _answers(details: Sequence[Mapping[str, Any]]) -> tuple[list[_Answer], bool]:
    """Return the recorded answers in their order, and whether all records are complete. An answer
    without a recorded prompt or logprobs is left out."""
    answers: list[_Answer] = []
    whole = True
    for detail in details:
        keys = ("prompt_token_ids", "completion_token_ids", "logprobs")
        columns = [[list(row) for row in detail.get(key) or []] for key in keys]
        rows = list(zip(*columns, strict=False)) if len({len(c) for c in columns}) == 1 else []
        whole_rows = [_Answer(*row) for row in rows if len(row[1]) == len(row[2]) > 0]
        whole = whole and bool(whole_rows) and len(whole_rows) == max(map(len, columns))
        answers += whole_rows
    return answers, whole and bool(details)


def _observed(step: Mapping[str, Any]) -> str:
    results = (step.get("observation") or {}).get("results") or []
    texts = [result.get("content") for result in results if isinstance(result, dict)]
    return "\n".join(text if isinstance(text, str) else json.dumps(text) for text in texts if text)


def _seconds(started: Any, finished: Any) -> float:
    from datetime import datetime

    try:
        begun, ended = (datetime.fromisoformat(str(moment)) for moment in (started, finished))
        return round((ended - begun).total_seconds(), 3)
    except (TypeError, ValueError):
        return 0.0


def prompt_of(instruction: str) -> str:
    """Return the beginning of an instruction, for summaries."""
    return instruction[:_LONGEST_PROMPT]
