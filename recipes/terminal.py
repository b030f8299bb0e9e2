"""Reinforcement learning in a shell: GRPO over episodes of many turns: `python -m
sweeper.recipes.terminal tasks=grids/terminal log_path=/tmp/terminal`."""

# Each step plays `groups_per_batch` tasks, `group_size` times each, `n_parallel_envs` at once. Each
# episode has its own environment (sweeper.sandbox). In a turn the model answers with a command
# (`agent: command`) or with Terminus's JSON (`agent: terminus`), and gets the output. When the
# model is done or reaches a limit, the task's verifier computes the reward of the episode. The rest
# is as in rl.py: advantages within a group, losses, penalties, checkpoints.
#
# An environment that dies says nothing about the model: the episode is played again from its
# beginning, with the same seeds, and given up after `environment_retries`. It never counts as a
# reward of 0. An episode that the task's verifier cannot judge does count as 0. Such failures are
# counted and printed, and a run ends at a step in which no episode could be judged.
#
# Every episode is kept in `episodes.jsonl` until the next checkpoint. So a run that is stopped or
# killed in the middle of a step resumes without playing finished episodes again.

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import chz

from sweeper import sandbox
from sweeper.sandbox import Died, NotThere
from sweeper.sandbox.tasks import Task, TaskFailed, made_of

from . import (
    chat,
    episodes,
    hyperparams,
    rewards,
    rl,
    rollouts,
    samplers,
    service,
    settings,
    tasks,
    terminal_tasks,
)
from .episodes import Ended, Played, Player, Sampled
from .rollouts import Group, Problem
from .service import RecipeError
from .trainer import run

if TYPE_CHECKING:
    import tinker

_LOOK_SECONDS = 0.2


@chz.chz
class Config(settings.Policy, settings.Tasks):
    """Configuration of a run. Metrics are reproducible if the commands are deterministic."""

    test_tasks: str | None = chz.field(default=None, doc="folder of tasks to evaluate on")
    test_task_ids: str | None = chz.field(
        default=None,
        doc="evaluate only on these tasks of test_tasks (of tasks, if test_tasks is not set)",
    )
    environment: str = chz.field(
        default="bubblewrap",
        doc="where commands are executed: bubblewrap, podman, docker, harbor:TYPE, process",
    )
    unsafe: bool = chz.field(
        default=False, doc="allow `environment: process`, which isolates nothing"
    )
    agent: Literal["command", "terminus"] = chz.field(
        default="command", doc="form of an answer: one command, or Terminus's JSON"
    )
    max_turns: int = chz.field(default=8, doc="maximum number of answers in an episode")
    max_tokens: int = chz.field(default=256, doc="longest answer sampled, in tokens")
    context_limit: int = chz.field(default=16384, doc="longest episode, in tokens")
    max_output: int = chz.field(default=4000, doc="characters of an output that the model sees")
    summarise: bool = chz.field(
        default=False, doc="let the model summarise at context_limit, and continue from the summary"
    )
    summary_margin: int = chz.field(
        default=0, doc="summarise this many tokens before context_limit"
    )
    n_epochs: int | None = chz.field(
        default=None, doc="train on each task this many times, instead of max_steps"
    )
    command_seconds: float = chz.field(default=60.0, doc="time limit of a command")
    episode_seconds: float = chz.field(
        default=1800.0, doc="time limit of an episode, without its verifier"
    )
    n_parallel_envs: int = chz.field(default=8, doc="episodes at once")
    environment_retries: int = chz.field(
        default=3, doc="how often to repeat an episode whose environment died"
    )
    memory_mb: int = chz.field(
        default=1024, doc="memory of an environment, unless its task sets it"
    )
    storage_mb: int = chz.field(
        default=512, doc="size of files in an environment, unless its task sets it"
    )
    cpus: int | None = chz.field(
        default=None, doc="CPUs of an environment, unless its task sets them; default: all"
    )
    log_path: str = chz.field(default="runs/terminal", doc="directory for metrics and checkpoints")

    @chz.validate
    def _check(self) -> None:
        settings.check_at_least(self, max_turns=1, context_limit=2, max_output=2)
        settings.check_at_least(self, n_parallel_envs=1, environment_retries=0)
        settings.check_at_least(self, memory_mb=16, storage_mb=1, summary_margin=0)
        if self.cpus is not None:
            settings.check_at_least(self, cpus=1)
        if self.summary_margin >= self.context_limit:
            raise ValueError("summary_margin must be less than context_limit")
        if self.n_epochs is not None:
            settings.check_at_least(self, n_epochs=1)
        settings.check_positive(self, "command_seconds")
        settings.check_positive(self, "episode_seconds")
        sandbox.check_kind(self.environment)
        if self.environment == "process" and not self.unsafe:
            raise ValueError(
                "environment=process isolates nothing: "
                "set unsafe=True if commands may do anything that you may"
            )


class Stoppable(Protocol):
    """The interface of an environment or trial that can be stopped."""

    def stop(self) -> None:
        """Stop the environment or trial, even while a command or a request is running."""


P = TypeVar("P", bound=Stoppable)


class Key(NamedTuple):
    """The identity of an episode: `train` or `test`, and its step, group and episode numbers."""

    split: str
    step: int
    group: int
    episode: int


def lacks(values: Mapping[str, Any]) -> list[str]:
    """Return a line if this machine cannot run the environment, and a line for each mistake in the
    tasks. Called for a planned grid whose runs execute on this machine."""
    reasons: list[str] = []
    kind = values.get("environment", "bubblewrap")
    if (lacking := _missing(kind)) is not None:
        reasons.append(f"environment={kind}: {lacking}")
    return reasons + terminal_tasks.mistakes(values)


@cache
def _missing(kind: str) -> str | None:
    return sandbox.missing(kind)


def notes(values: Mapping[str, Any]) -> list[str]:
    """Return lines for the plan of a run: the values chosen for `auto`."""
    return hyperparams.notes("terminal", Config, values)


def main(config: Config) -> None:
    """Train or resume. Exits with code 143 after SIGTERM and 130 after SIGINT."""
    run("terminal", EpisodeTrainer, with_epochs(config))


def with_epochs(config: Any) -> Any:
    """Return the configuration with `max_steps` computed from `n_epochs`; unchanged if `n_epochs`
    is None. If the last batch is not full, tasks of one more epoch fill it."""
    if config.n_epochs is None:
        return config
    count = len(terminal_tasks.read(chz.asdict(config)).train)
    steps = -(-config.n_epochs * count // config.groups_per_batch)
    return chz.replace(config, max_steps=max(steps, 1))


class EpisodeTrainer(rl.GroupTrainer):
    """The training loop of rl.py. Each answer is an episode in a terminal environment."""

    config: Config
    shown: ClassVar = ("env/all/reward/total", "env/all/correct", "test/reward")

    @staticmethod
    def load_data(config: Config) -> terminal_tasks.Tasks:
        """Read the tasks. Raises RecipeError if a task has a mistake, or if this machine cannot run
        the environment."""
        if (lacking := sandbox.missing(config.environment)) is not None:
            raise RecipeError(f"environment={config.environment}: {lacking}")
        return terminal_tasks.read(chz.asdict(config))

    def prepare(self, data: Any) -> None:
        """Render the prompts of all tasks and prepare to play episodes."""
        config = self.config
        self.tag = config.dataset or os.path.basename(os.path.normpath(config.tasks))
        self.tasks = {"train": data.train, "test": data.test}
        self.questions = [self.problem(task) for task in data.train]
        self.held_out = [self.problem(task) for task in data.test]
        self.reference = self.open_reference()
        self.open_player()
        self.pool = ThreadPoolExecutor(config.n_parallel_envs, "episode")
        self.places: set[Stoppable] = set()
        self.closing = False
        self.lock = threading.Lock()
        self.recorded = {
            Key(*record["key"]): Ended(episodes.from_document(record), record["failures"])
            for record in self.run.read_episodes()
        }
        self.batch: dict[str, list[list[Ended]]] = {}

    def open_player(self) -> None:
        """Create the episode player."""
        config, self.agent = self.config, episodes.AGENT
        self.player = Player(
            self.tokenizer,
            config.agent,
            episodes.Limits(
                config.max_turns,
                config.max_tokens,
                config.context_limit,
                config.command_seconds,
                config.episode_seconds,
                config.max_output,
                config.summarise,
                config.summary_margin,
            ),
        )
        self.limits = sandbox.Limits(config.memory_mb, config.storage_mb, cpus=config.cpus)

    def problem(self, task: Task) -> Problem:
        """Return the prompt of a task. Raises RecipeError if the prompt does not fit the
        context."""
        text = episodes.instruction(self.config.agent, task.steps[0])
        messages = [{"role": "user", "content": text}]
        prompt, end = chat.render_prompt(self.tokenizer, messages)
        if len(prompt) + self.config.max_tokens > self.config.context_limit:
            raise RecipeError(
                f"context_limit={self.config.context_limit} is too small for {task.folder}: "
                f"its prompt has {len(prompt)} tokens, and its answer may have "
                f"max_tokens={self.config.max_tokens}"
            )
        return Problem(messages, prompt, "", end, 0, task.name)

    def close(self) -> None:
        """End all environments."""
        with self.lock:
            self.closing = True
            places = list(self.places)
        self.pool.shutdown(wait=False, cancel_futures=True)
        for place in places:
            place.stop()

    def record(
        self, step: int, saved: "tinker.APIFuture[tinker.types.SaveWeightsResponse]"
    ) -> None:
        """Record the checkpoint, and drop the recorded episodes of the steps before `step`."""
        super().record(step, saved)
        with self.lock:
            self.run.drop_episodes_before(step)

    def begin_sampling(self, step: int) -> Callable[[], list[Group]]:
        """Start the episodes of a training step; see `begin`."""
        config = self.config
        with self.timed("save"):
            sampler = self.wait(self.sampler)
        indices = tasks.batch_indices(
            step, config.groups_per_batch, len(self.questions), config.seed
        )
        return self.begin("train", step, indices, sampler, config.group_size)

    def begin(
        self,
        split: str,
        step: int,
        indices: Sequence[int],
        sampler: "tinker.SamplingClient",
        size: int,
    ) -> Callable[[], list[Group]]:
        """Start `size` episodes of each task in `indices`. The returned function waits for the
        episodes and returns them in groups. It raises RecipeError if environments died so often
        that no episode was finished."""
        begun: list[tuple[Problem, list[Future[Ended]]]] = []
        problems = self.questions if split == "train" else self.held_out
        for group, index in enumerate(indices):
            keys = [Key(split, step, group, number) for number in range(size)]
            problem, first = problems[index], None
            if any(key not in self.recorded for key in keys):
                first = self.ask_first(sampler, problem, keys[0], size)
            task = self.tasks[split][index]
            futures = [
                self.pool.submit(self.play, key, task, problem, sampler, first) for key in keys
            ]
            begun.append((problem, futures))

        def groups() -> list[Group]:
            with self.timed("sampling"):
                ended = [self.results(futures) for _, futures in begun]
            self.batch[split] = ended
            groups = [
                Group(problem, episodes.rollouts_of(of_task))
                for (problem, _), of_task in zip(begun, ended, strict=True)
            ]
            groups = [group for group in groups if group.rollouts]
            if not groups:
                raise RecipeError(
                    "the environments of all episodes died, with "
                    f"environment_retries={self.config.environment_retries}"
                )
            return groups

        return groups

    def ask_first(
        self, sampler: "tinker.SamplingClient", problem: Problem, key: Key, size: int
    ) -> "rl.SampleRequest | None":
        """Request the first answers of a group's episodes, which have the same prompt, in one
        request. A subclass may send no request and return None."""
        seed = rl.sampling_seed(self.config.seed, key.step, key.group)
        return self.ask(sampler, problem, size, seed=seed, **self.params(key.split))

    def params(self, split: str) -> dict[str, Any]:
        """Return the sampling parameters: greedy for evaluations."""
        temperature = self.config.temperature if split == "train" else 0.0
        return {"max_tokens": self.config.max_tokens, "temperature": temperature}

    def results(self, futures: Sequence[Future[Ended]]) -> list[Ended]:
        """Wait for episodes and return them. Raises `Interrupted` after a signal."""
        pending = set(futures)
        while pending:
            if self.stop.signum is not None:
                raise rl.Interrupted
            done, pending = wait_for(pending, _LOOK_SECONDS)
            for future in done:
                if error := future.exception():
                    raise error
        return [future.result() for future in futures]

    def play(
        self, key: Key, task: Task, problem: Problem, sampler: "tinker.SamplingClient", first: Any
    ) -> Ended:
        """Play an episode and append it to `episodes.jsonl`. If the environment dies, play the
        episode again, at most `environment_retries` times. If the episode was recorded before the
        run was resumed, return the recorded episode."""
        if key in self.recorded:
            return self.recorded.pop(key)

        failures = 0
        while failures <= self.config.environment_retries:
            try:
                played = self.attempt(key, task, problem, sampler, first)
            except (Died, OSError) as error:
                if self.closing:
                    raise rl.Interrupted from None
                failures += 1
                print(f"{task.name}: an environment died: {error}", flush=True)
                continue
            except (TaskFailed, NotThere) as error:
                raise RecipeError(str(error)) from None
            with self.lock:
                line = episodes.document(task.name, key.episode, played)
                self.run.append_episode(
                    {"step": key.step, "key": key, "failures": failures, **line}
                )
            return Ended(played, failures)
        return Ended(None, failures)

    def attempt(
        self, key: Key, task: Task, problem: Problem, sampler: "tinker.SamplingClient", first: Any
    ) -> Played:
        """Play one episode in a new environment. Raises `Died` if the environment dies."""

        def sample(turn: int, context: list[int]) -> Sampled:
            if turn == 0:
                return _sampled(self.wait(first).sequences[key.episode])
            seed = samplers.seed_of(f"turn/{self.config.seed}/{key}/{turn}")
            prompted = problem._replace(prompt=context)
            request = self.ask(sampler, prompted, 1, seed=seed, **self.params(key.split))
            return _sampled(self.wait(request).sequences[0])

        config, environment = self.config, made_of(task, self.limits)
        opened = sandbox.open_environment(config.environment, environment, unsafe=config.unsafe)
        with self.held(opened) as place:
            return self.player.play(task, problem, place, sample)

    @contextmanager
    def held(self, place: P) -> Iterator[P]:
        """Stop an environment or trial after the `with` block, or when `close` is called."""
        with self.lock:
            if self.closing:
                place.stop()
                raise rl.Interrupted
            self.places.add(place)
        try:
            yield place
        finally:
            place.stop()
            with self.lock:
                self.places.discard(place)

    def begin_evaluation(self, step: int) -> Callable[[], dict[str, float]]:
        """Start one greedy episode of each held-out task. The returned function waits for the
        episodes, and returns metrics such as `test/reward` (none without held-out tasks)."""
        if not self.held_out:
            return dict
        groups_due = self.begin("test", step, range(len(self.held_out)), self.wait(self.sampler), 1)

        def scores() -> dict[str, float]:
            groups = groups_due()
            judging = self.judging(step, groups, "eval_test_")
            failed = self.failure_metrics(judging, "eval_test_")
            self.write_rollouts(step, "eval_test", groups, f"Running evaluation test {step}")
            return rollouts.held_out_metrics(rollouts.metrics_of(groups) | failed)

        return scores

    def judging(self, step: int, groups: list[Group], name: str = "") -> rewards.Judging:
        """Record the episodes that the verifiers could not judge. Return the number of these
        failures, and the number of played episodes."""
        ended = chain.from_iterable(self.batch[_split_of(name)])
        played = [episode.played for episode in ended if episode.played is not None]
        tags = [group.problem.tag for group in groups for _ in group.rollouts]
        failures = [
            rewards.Failure(f"{tag}: {episode.wrong}", tag, episode.rollout.text)
            for tag, episode in zip(tags, played, strict=True)
            if episode.wrong
        ]
        return rewards.judging(self.run, step, "the verifier", failures, len(played), name)

    def failure_metrics(self, judging: rewards.Judging, name: str = "") -> dict[str, float]:
        """Return metrics of a step's episodes, such as failures; see `episodes.counts`."""
        return episodes.counts(self.batch[_split_of(name)]) | judging.metrics("verifier")

    def write_rollouts(self, step: int, name: str, groups: list[Group], title: str) -> None:
        """Write summaries and transcripts as rl.py does, and every episode as an ATIF
        trajectory."""
        super().write_rollouts(step, name, groups, title)
        played_groups = [
            [episode.played for episode in group if episode.played is not None]
            for group in self.batch["train" if name == "train" else "test"]
        ]
        lines = [
            json.dumps(
                episodes.atif(
                    group.problem,
                    played,
                    self.config.model_name,
                    {"task": group.problem.tag, "iteration": step, "group": number, "traj": place},
                    self.agent,
                )
            )
            for number, (group, every) in enumerate(
                zip(groups, filter(None, played_groups), strict=True)
            )
            for place, played in enumerate(every)
        ]
        self.run.write_iteration(step, f"{name}_trajectories.jsonl", "\n".join(lines) + "\n")


def _split_of(name: str) -> str:
    """Return "train" if `name`, a prefix of file names, is empty. Return "test" otherwise."""
    return "test" if name else "train"


def _sampled(sequence: Any) -> Sampled:
    tokens, logprobs = list(sequence.tokens), list(sequence.logprobs)
    return Sampled(tokens, logprobs, sequence.stop_reason == "stop")


if __name__ == "__main__":
    service.run_program(main, Config)
