"""Plays episodes of many turns: a model works in a shell until it is done or reaches a limit.
Training uses the sampled tokens themselves: they are not decoded and tokenized again."""

import json
from collections.abc import Callable, Sequence
from time import monotonic, time
from typing import Any, NamedTuple

from sweeper.sandbox import Environment, Result
from sweeper.sandbox.tasks import Judged, Step, Task, begin_step, set_up, total, verify

from . import chat
from .rollouts import Problem, Rollout, Turn

_HEAD = {
    "command": "",
    "terminus": (
        "You work in a Linux shell. Answer with one JSON object: "
        '{"analysis": "...", "plan": "...", "commands": [{"keystrokes": "ls\\n", "duration": 1}], '
        '"task_complete": false}. You are told what the commands print. Set task_complete to true '
        "once the task is done.\n\nThe task:\n"
    ),
}
"""The introduction before the task's text, for each kind of agent."""
AGENT = "sweeper-terminal"
"""The name of this agent in trajectories."""
_LEAVE = ("exit", "logout")
_SUMMARISE = (
    "You are about to run out of room: all of this will be gone. Say what was done, what was found "
    "out and what is left to do, for somebody who continues it."
)
_SUMMARY = "\n\nWhat has been done so far:\n"


class Sampled(NamedTuple):
    """An answer of the model."""

    tokens: list[int]
    logprobs: list[float]
    ended: bool


class Limits(NamedTuple):
    """Limits of an episode: turns, tokens of an answer, tokens of the context, seconds of a
    command, seconds of the episode, and characters of an output that the model sees. With
    `summarise`, the model writes a summary before the context is full, and continues from the
    summary. With a larger `margin` (in tokens), the summary is written earlier."""

    turns: int
    tokens: int
    context: int
    command_seconds: float
    episode_seconds: float
    output: int
    summarise: bool = False
    margin: int = 0


class Played(NamedTuple):
    """A finished episode: its rollout, the reason for its end, the verifier's results, and its
    duration."""

    rollout: Rollout
    ended: str
    judged: list[Judged]
    seconds: float
    ended_at: float = 0.0

    @property
    def wrong(self) -> str:
        """The error of the verifier, or an empty string."""
        return next((result.wrong for result in self.judged if result.wrong), "")


class Ended(NamedTuple):
    """The result of an episode (None if every environment died), and the number of environments
    that died."""

    played: Played | None
    failures: int


class Action(NamedTuple):
    """The commands of an answer and whether the model is done, or the reason why the answer is
    invalid."""

    commands: list[tuple[str, float | None]]
    done: bool = False
    wrong: str = ""


def instruction(agent: str, step: Step) -> str:
    """Return the message to the model at the beginning of a task's step."""
    return _HEAD[agent] + step.instruction


def action_of(agent: str, text: str) -> Action:
    """Parse an answer."""
    if agent == "command":
        command = text.strip().replace("\0", "")
        return Action([], done=True) if command in _LEAVE else Action([(command, None)])
    return _terminus(text)


def _terminus(text: str) -> Action:
    start, end = text.find("{"), text.rfind("}")
    try:
        value: Any = json.loads(text[start : end + 1]) if start >= 0 else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("commands", []), list):
        return Action([], wrong='no JSON object with "commands"')
    commands: list[tuple[str, float | None]] = []
    for entry in value.get("commands", []):
        keys = entry.get("keystrokes") if isinstance(entry, dict) else None
        if not isinstance(keys, str):
            return Action([], wrong='each of "commands" needs "keystrokes"')
        wait = entry.get("duration")
        seconds = float(wait) if isinstance(wait, int | float) and wait > 0 else None
        commands.append((keys.replace("\0", "").rstrip("\n"), seconds))
    return Action(commands, done=value.get("task_complete") is True)


def shown(result: Result, most: int) -> str:
    """Return a command's result as the model sees it. From an output of more than `most`
    characters, the middle is left out. If a limit or the end of the shell ended the command, a
    note says so. If a command failed without output, the text is the exit code."""
    text = result.text
    lost = result.lost
    if len(text) > most:
        half = most // 2
        lost += len(text) - 2 * half
        text = f"{text[:half]}\n[... {lost} left out ...]\n{text[-half:]}"
    elif lost:
        text += f"\n[... {lost} left out ...]"
    text = text.rstrip("\n")
    if result.ended:
        why = {"timeout": "time is up", "shell": "the shell has ended"}.get(result.ended)
        return f"{text}\n[{why or f'ended: {result.ended}'}]".lstrip("\n")
    return text if result.code == 0 or text else f"[exit code {result.code}]"


class Player:
    """Plays episodes of one kind of agent, within limits."""

    def __init__(self, tokenizer: Any, agent: str, limits: Limits) -> None:
        self.tokenizer, self.agent, self.limits = tokenizer, agent, limits

    def play(
        self,
        task: Task,
        problem: Problem,
        place: Environment,
        sample: Callable[[int, list[int]], Sampled],
    ) -> Played:
        """Start the environment, and play an episode in it. `sample(turn, context)` returns the
        model's next answer. Raises `Died` if the environment dies, and `TaskFailed` if the task
        cannot be set up."""
        begun = monotonic()
        place.start()
        set_up(place, task)
        episode = _Episode(self, problem, place, sample, begun)
        judged: list[Judged] = []
        for number, step in enumerate(task.steps):
            begin_step(place, task, step)
            if number:
                episode.ask(instruction(self.agent, step))
            episode.play_step(step)
            judged.append(verify(place, task, step))
            if not judged[-1].meets(step.min_reward) or episode.over:
                break
        reward = total(task, judged)
        return Played(episode.rollout(reward), episode.ended, judged, monotonic() - begun, time())

    def act(self, place: Environment, action: Action, deadline: float) -> str:
        """Execute the commands of an action. Return the outputs, or the action's error."""
        if action.wrong:
            return f"[{action.wrong}]"
        limits, messages = self.limits, list[str]()
        for command, seconds in action.commands:
            most = min(seconds or limits.command_seconds, limits.command_seconds)
            remaining = max(deadline - monotonic(), 0.01)
            result = place.exec(command, min(most, remaining), 4 * limits.output)
            messages.append(shown(result, limits.output))
        return "\n".join(text for text in messages if text)


class _Episode:
    """An episode in progress: all tokens so far, and the turns."""

    def __init__(
        self,
        player: Player,
        problem: Problem,
        place: Environment,
        sample: Callable[[int, list[int]], Sampled],
        begun: float,
    ) -> None:
        self._player, self._end, self._place, self._sample = player, problem.end, place, sample
        self._task = problem.messages[-1]["content"]
        self._latest, self._fresh = "", False
        self._limits, self._tokenizer = player.limits, player.tokenizer
        self._deadline = begun + self._limits.episode_seconds
        self._context = list(problem.prompt)
        self._before: list[int] = []
        self._turns: list[Turn] = []
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self.ended = ""

    @property
    def over(self) -> bool:
        """Whether a limit has ended the episode."""
        return self.ended in ("context_limit", "max_turns", "time")

    def tell(self, text: str) -> None:
        """Append a message for the model after its last answer."""
        tokens = self._reply(text)
        self._latest, self._before, self._context = text, tokens, self._context + tokens

    def ask(self, text: str) -> None:
        """Append the instruction `text` of the task's next step."""
        self._task = text
        self.tell(text)

    def _reply(self, text: str) -> list[int]:
        tokens = chat.render_reply(self._tokenizer, text)
        if self._turns and not self._turns[-1].ended:
            tokens = [self._end, *tokens]  # the model did not write its end token
        return tokens

    def play_step(self, step: Step) -> None:
        """Play turns until the model is done with a step, or a limit is reached."""
        limits = self._limits
        deadline = min(self._deadline, monotonic() + (step.timeout_sec or limits.episode_seconds))
        self.ended = ""
        while not self.ended:
            if self._full() and not self._summed_up():
                self.ended = "context_limit"
            elif monotonic() > deadline:
                self.ended = "time"
            else:
                self._turn(deadline)

    def _turn(self, deadline: float) -> None:
        begun = monotonic()
        sampled = self._sample(len(self._turns), self._context)
        text = self._tokenizer.decode(sampled.tokens, skip_special_tokens=True)
        action = action_of(self._player.agent, text)
        output = self._player.act(self._place, action, deadline)
        metrics = {"parse_error": 1.0} if action.wrong else dict[str, float]()
        self._keep(sampled, text, output, begun, metrics)
        if action.done:
            self.ended = "done"
        elif len(self._turns) >= self._limits.turns:
            self.ended = "max_turns"
        else:
            self.tell(chat.without_special(self._tokenizer, output) or "[no output]")

    def _keep(
        self, sampled: Sampled, text: str, output: str, begun: float, metrics: dict[str, float]
    ) -> None:
        """Record a sampled turn."""
        measured = {"seconds": round(monotonic() - begun, 3)} | metrics
        turn = Turn(
            self._before, len(sampled.tokens), text, sampled.ended, output, measured, self._fresh
        )
        self._turns.append(turn)
        self._tokens += sampled.tokens
        self._logprobs += sampled.logprobs
        self._context = self._context + sampled.tokens
        self._fresh = False

    def _full(self) -> bool:
        """Return whether the next answer might exceed the context. With `summarise`, a request
        for a summary, the summary and the margin need room too. Return False before the first
        answer."""
        limits = self._limits
        room = len(self._context) + limits.tokens
        if limits.summarise:
            room += len(self._reply(_SUMMARISE)) + limits.tokens + limits.margin
        return room > limits.context and bool(self._turns)

    def _summed_up(self) -> bool:
        """Let the model write a summary in an extra turn, and restart the context from the summary.
        If the context was just restarted, write no second summary. Return whether the next answer
        fits. Return False if a summary is impossible: summaries are disabled, no turn is left, or
        the request for a summary does not fit."""
        limits = self._limits
        if self._fresh:
            return len(self._context) + limits.tokens <= limits.context
        if not limits.summarise or len(self._turns) + 1 >= limits.turns:
            return False
        # The request replaces the last message to the model, which is repeated after the summary.
        # So it fits, however long that message was.
        context = self._context[: len(self._context) - len(self._before)]
        self._before = self._reply(_SUMMARISE)
        if len(context) + len(self._before) + limits.tokens > limits.context:
            return False
        self._context, begun = context + self._before, monotonic()
        sampled = self._sample(len(self._turns), self._context)
        text = self._tokenizer.decode(sampled.tokens, skip_special_tokens=True)
        self._keep(sampled, text, "", begun, {"summary": 1.0})
        summary = chat.without_special(self._tokenizer, text)
        prompt_text = f"{self._task}{_SUMMARY}{summary}\n\n{self._latest}".rstrip("\n")
        messages = [{"role": "user", "content": prompt_text}]
        prompt, _ = chat.render_prompt(self._tokenizer, messages)
        self._before, self._context, self._fresh = prompt, list(prompt), True
        return len(prompt) + limits.tokens <= limits.context

    def rollout(self, reward: float) -> Rollout:
        """Return the rollout of the episode. If a limit ended the episode, the metrics of the last
        turn name the limit."""
        last = self._turns[-1]
        stop = {f"stop/{self.ended}": 1.0} if self.ended not in ("", "done") else {}
        turns = (*self._turns[:-1], last._replace(metrics={**last.metrics, **stop}))
        text = "\n".join(turn.text for turn in turns)
        return Rollout(self._tokens, self._logprobs, text, last.ended, reward, reward >= 1.0, turns)


def about(played: Played, failures: int) -> dict[str, float]:
    """Return the metrics of an episode: whether the reward was at least 1, the duration, when and
    why the episode ended, the number of environments that died in earlier tries of the episode,
    and whether the verifier failed."""
    return {
        "solved": float(played.rollout.correct),
        "seconds": round(played.seconds, 3),
        "ended_at": round(played.ended_at, 3),
        "environment_failures": failures,
        "verifier_failure": float(bool(played.wrong)),
        f"stop/{played.ended}": 1.0,
    }


def rollouts_of(group: Sequence[Ended]) -> list[Rollout]:
    """Return the rollouts of a group's played episodes, with the metrics of each. An episode is
    lost if every environment died. The first rollout's metrics also count the group's lost episodes
    and the environments that died in lost episodes."""
    result: list[Rollout] = []
    lost = [ended.failures for ended in group if ended.played is None]
    for ended in group:
        if ended.played is not None:
            summary = about(ended.played, ended.failures)
            if lost and not result:
                summary["environment_failures"] += sum(lost)
                summary["episodes_lost"] = len(lost)
            result.append(ended.played.rollout._replace(about=summary))
    return result


def counts(groups: Sequence[Sequence[Ended]]) -> dict[str, float]:
    """Return metrics of all episodes: the numbers of dead environments and lost episodes, the mean
    number of summaries, the mean duration, and the fraction of episodes that ended for each
    reason."""
    every = [ended for group in groups for ended in group]
    played = [ended.played for ended in every if ended.played is not None]
    summaries = [
        float(sum("summary" in turn.metrics for turn in episode.rollout.turns))
        for episode in played
    ]
    metrics: dict[str, float] = {
        "env/all/environment_failures": sum(ended.failures for ended in every),
        "env/all/episodes_lost": len(every) - len(played),
        "env/all/summaries": _mean(summaries),
        "time/episode": _mean([episode.seconds for episode in played]),
    }
    for why in ("done", "max_turns", "context_limit", "time"):
        metrics[f"env/all/stop/{why}"] = _mean([float(episode.ended == why) for episode in played])
    return metrics


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def document(task: str, number: int, played: Played) -> dict[str, Any]:
    """Return an episode as a record of `episodes.jsonl`."""
    rollout = played.rollout
    values = rollout._asdict()
    del values["likeliest"]  # not requested for episodes of several turns
    return {
        "task": task,
        "episode": number,
        "stop": played.ended,
        "seconds": played.seconds,
        "ended_at": played.ended_at,
        "judged": [[dict(step.rewards), step.output, step.wrong] for step in played.judged],
        **values,
        "turns": [turn._asdict() for turn in rollout.turns],
    }


def from_document(record: dict[str, Any]) -> Played:
    """Parse a record of `episodes.jsonl`."""
    turns = tuple(Turn(**turn) for turn in record["turns"])
    values = {key: record[key] for key in Rollout._fields if key != "turns" and key in record}
    judged = [Judged(*step) for step in record["judged"]]
    rollout, ended_at = Rollout(**values, turns=turns), record.get("ended_at", 0.0)
    return Played(rollout, record["stop"], judged, record["seconds"], ended_at)


def atif(
    problem: Problem, played: Played, model_name: str, about: dict[str, Any], agent: str = AGENT
) -> dict[str, Any]:
    """Return an episode as a trajectory in ATIF, harbor's format, with every sampled token and
    its logprob."""
    rollout = played.rollout
    first = problem.messages[-1]["content"]
    steps: list[dict[str, Any]] = [{"step_id": 1, "source": "user", "message": first}]
    prompt, taken = len(problem.prompt), 0
    for turn in rollout.turns:
        prompt = len(turn.before) if turn.fresh else prompt + len(turn.before)
        part = slice(taken, taken + turn.size)
        metrics = {
            "prompt_tokens": prompt,
            "completion_tokens": turn.size,
            "completion_token_ids": rollout.tokens[part],
            "logprobs": rollout.logprobs[part],
        }
        steps.append({
            "step_id": len(steps) + 1,
            "source": "agent",
            "model_name": model_name,
            "message": turn.text,
            "observation": {"results": [{"content": turn.output}]},
            "metrics": metrics,
            "llm_call_count": 1,
        })  # fmt: skip
        prompt, taken = prompt + turn.size, taken + turn.size
    extra = {"reward": rollout.reward, "ended": played.ended, "seconds": played.seconds}
    return {
        "schema_version": "ATIF-v1.8",
        "agent": {"name": agent, "version": "1", "model_name": model_name},
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": sum(
                step["metrics"]["prompt_tokens"] for step in steps if "metrics" in step
            ),
            "total_completion_tokens": len(rollout.tokens),
            "total_steps": len(steps),
        },
        "extra": extra | about,
    }
