"""Reinforcement learning where the model works in a shell: GRPO over episodes of many turns.

    python -m sweeper.recipes.terminal tasks=grids/terminal log_path=/tmp/terminal

Each step plays `groups_per_batch` tasks, `group_size` times each, `n_parallel_envs` at once, each
episode in an environment of its own (sweeper.environments). A turn is an answer of the model, which
is a command (`agent: command`) or Terminus's JSON (`agent: terminus`), and what that printed. When
the model is done, or may go on no longer, the task's verifier says what the episode earned. All
else is as in rl.py: advantages within a group, losses, penalties, checkpoints.

An environment that ends by itself says nothing about the model: the episode is played again from
its beginning, with the same seeds, and given up after `environment_retries`. It never counts as a
reward of 0. What the task's verifier cannot judge does, and is counted.

Every episode is kept in `episodes.jsonl` until the next checkpoint: a run that is stopped or killed
in the middle of a step goes on without playing again what has been played.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import chz

from sweeper import environments
from sweeper.environments import Died, Environment, NotThere
from sweeper.tasks import Task, TaskFailed, made_of, read_all

from . import chat, episodes, hyperparams, rl, rollouts, samplers, service, settings, tasks
from .episodes import Played, Player, Sampled
from .rollouts import Group, Problem
from .service import RecipeError
from .trainer import run

if TYPE_CHECKING:
    import tinker

_LOOK_SECONDS = 0.2


@chz.chz
class Config(settings.Policy):
    """What a run is; the same configuration gives the same metrics, as far as commands do."""

    tasks: str = chz.field(doc="folder of the tasks to train on (sweeper tasks check)")
    test_tasks: str | None = chz.field(default=None, doc="folder of tasks to evaluate on")
    environment: str = chz.field(
        default="bubblewrap",
        doc="where commands are executed: bubblewrap, podman, docker, harbor:TYPE, process",
    )
    unsafe: bool = chz.field(
        default=False, doc="allow `environment: process`, which keeps nothing apart"
    )
    agent: Literal["command", "terminus"] = chz.field(
        default="command", doc="what an answer is: one command, or Terminus's JSON"
    )
    max_turns: int = chz.field(default=8, doc="answers of an episode")
    max_tokens: int = chz.field(default=256, doc="longest answer sampled, in tokens")
    context_limit: int = chz.field(default=16384, doc="longest episode, in tokens")
    max_output: int = chz.field(default=4000, doc="characters of an output that the model sees")
    summarise: bool = chz.field(
        default=False, doc="have the model sum up at context_limit, and go on from that"
    )
    n_epochs: int | None = chz.field(
        default=None, doc="train on each task so many times, in the place of max_steps"
    )
    command_seconds: float = chz.field(default=60.0, doc="longest command")
    episode_seconds: float = chz.field(default=1800.0, doc="longest episode, without its verifier")
    n_parallel_envs: int = chz.field(default=8, doc="episodes at once")
    environment_retries: int = chz.field(
        default=3, doc="how often an episode is played again whose environment ended by itself"
    )
    memory_mb: int = chz.field(default=1024, doc="memory of an environment, if its task says none")
    storage_mb: int = chz.field(default=512, doc="files of an environment, if its task says none")
    log_path: str = chz.field(default="runs/terminal", doc="directory for metrics and checkpoints")

    @chz.validate
    def _check(self) -> None:
        settings.check_at_least(self, max_turns=1, context_limit=2, max_output=2)
        settings.check_at_least(self, n_parallel_envs=1, environment_retries=0)
        settings.check_at_least(self, memory_mb=16, storage_mb=1)
        if self.n_epochs is not None:
            settings.check_at_least(self, n_epochs=1)
        settings.check_positive(self, "command_seconds")
        settings.check_positive(self, "episode_seconds")
        environments.check_kind(self.environment)
        if self.environment == "process" and not self.unsafe:
            raise ValueError(
                "environment=process keeps nothing apart from this machine: "
                "it needs unsafe=True, if every command may do what you may"
            )


class Data(NamedTuple):
    """The tasks to train on, and those to evaluate on."""

    train: list[Task]
    test: list[Task]


class Key(NamedTuple):
    """Which episode: `train` or `test`, and the numbers of its step, its group and itself."""

    split: str
    step: int
    group: int
    episode: int


class Ended(NamedTuple):
    """What became of an episode: None if no environment lived long enough; how many did not."""

    played: Played | None
    failures: int


def lacks(values: Mapping[str, Any]) -> list[str]:
    """What this machine lacks for a run with these values, and the mistakes of its tasks: told
    when a grid is planned whose runs execute here."""
    found: list[str] = []
    kind = values.get("environment", "bubblewrap")
    if (lacking := _missing(kind)) is not None:
        found.append(f"environment={kind}: {lacking}")
    for key in ("tasks", "test_tasks"):
        if values.get(key):
            found += _mistakes(str(values[key]))
    return found


@cache
def _missing(kind: str) -> str | None:
    return environments.missing(kind)


@cache
def _mistakes(folder: str) -> tuple[str, ...]:
    return read_all(folder)[1]


def notes(values: Mapping[str, Any]) -> list[str]:
    """What a plan tells of a run with these values: the numbers where they say `auto`."""
    return hyperparams.notes("terminal", Config, values)


def main(config: Config) -> None:
    """Train, or go on training. Exit code 143 after SIGTERM and 130 after SIGINT."""
    run("terminal", EpisodeTrainer, with_epochs(config))


def with_epochs(config: Config) -> Config:
    """The configuration with as many steps as `n_epochs` takes; a last batch goes beyond them where
    the tasks do not divide."""
    if config.n_epochs is None:
        return config
    steps = -(-config.n_epochs * len(read_all(config.tasks)[0]) // config.groups_per_batch)
    return chz.replace(config, max_steps=max(steps, 1))


class EpisodeTrainer(rl.GroupTrainer):
    """The loop of rl.py, with episodes for answers."""

    config: Config
    shown: ClassVar = ("env/all/reward/total", "env/all/correct", "test/reward")

    @staticmethod
    def load_data(config: Config) -> Data:
        """Read the tasks. Raises RecipeError where one has a mistake, or there can be no
        environment here."""
        if (lacking := environments.missing(config.environment)) is not None:
            raise RecipeError(f"environment={config.environment}: {lacking}")
        folders = [config.tasks, *([config.test_tasks] if config.test_tasks else [])]
        found: list[list[Task]] = []
        for folder in folders:
            read, mistakes = read_all(folder)
            if mistakes:
                more = f" (and {len(mistakes) - 1} more: sweeper tasks check {folder})"
                raise RecipeError(mistakes[0] + (more if len(mistakes) > 1 else ""))
            found.append(read)
        return Data(found[0], found[1] if config.test_tasks else [])

    def prepare(self, data: Any) -> None:
        """Prompts of all tasks, and what plays them."""
        config = self.config
        self.tag = os.path.basename(os.path.normpath(config.tasks))
        self.tasks = {"train": data.train, "test": data.test}
        self.questions = [self.problem(task) for task in data.train]
        self.held_out = [self.problem(task) for task in data.test]
        self.reference = self.open_reference()
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
            ),
        )
        self.limits = environments.Limits(config.memory_mb, config.storage_mb)
        self.pool = ThreadPoolExecutor(config.n_parallel_envs, "episode")
        self.places: set[Environment] = set()
        self.closing = False
        self.lock = threading.Lock()
        self.known = {
            Key(*record["key"]): Ended(episodes.from_document(record), record["failures"])
            for record in self.run.read_episodes()
        }
        self.batch: dict[str, list[list[Ended]]] = {}

    def problem(self, task: Task) -> Problem:
        """What the model is told of a task. Raises RecipeError where there is no room for it."""
        told = episodes.instruction(self.config.agent, task.steps[0])
        messages = [{"role": "user", "content": told}]
        prompt, end = chat.render_prompt(self.tokenizer, messages)
        if len(prompt) + self.config.max_tokens > self.config.context_limit:
            raise RecipeError(
                f"context_limit={self.config.context_limit} is too little for {task.folder}: "
                f"its instruction has {len(prompt)} tokens"
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
        """And forget the episodes that it has learned from."""
        super().record(step, saved)
        with self.lock:
            self.run.drop_episodes_before(step)

    def begin_sampling(self, step: int) -> Callable[[], list[Group]]:
        """Begin to play a step's tasks; the function returned waits for the episodes."""
        config, sampler = self.config, self.wait(self.sampler)
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
        """Begin episodes, `size` of each of these tasks."""
        begun: list[tuple[Problem, list[Future[Ended]]]] = []
        problems = self.questions if split == "train" else self.held_out
        for group, index in enumerate(indices):
            keys = [Key(split, step, group, number) for number in range(size)]
            problem, first = problems[index], None
            if any(key not in self.known for key in keys):
                first = self.ask_first(sampler, problem, keys[0], size)
            task = self.tasks[split][index]
            futures = [
                self.pool.submit(self.play, key, task, problem, sampler, first) for key in keys
            ]
            begun.append((problem, futures))

        def groups() -> list[Group]:
            ended = [self.results(futures) for _, futures in begun]
            self.batch[split] = ended
            found = [
                Group(problem, _rollouts(own))
                for (problem, _), own in zip(begun, ended, strict=True)
            ]
            found = [group for group in found if group.rollouts]
            if not found:
                raise RecipeError(
                    f"no environment lives: all of {sum(map(len, ended))} episodes were given up "
                    f"after {self.config.environment_retries} retries"
                )
            return found

        return groups

    def ask_first(
        self, sampler: "tinker.SamplingClient", problem: Problem, key: Key, size: int
    ) -> rl.SampleRequest:
        """The first answers of a group, which all begin alike, in one request."""
        seed = rl.sampling_seed(self.config.seed, key.step, key.group)
        return self.ask(sampler, problem, size, seed=seed, **self.params(key.split))

    def params(self, split: str) -> dict[str, Any]:
        """How answers are sampled: greedily where they are evaluated."""
        temperature = self.config.temperature if split == "train" else 0.0
        return {"max_tokens": self.config.max_tokens, "temperature": temperature}

    def results(self, futures: Sequence[Future[Ended]]) -> list[Ended]:
        """Wait for episodes. Raises `Interrupted` when a signal comes, which leaves them for who
        goes on."""
        left = set(futures)
        while left:
            if self.stop.signum is not None:
                raise rl.Interrupted
            done, left = wait_for(left, _LOOK_SECONDS)
            for one in done:
                if error := one.exception():
                    raise error
        return [one.result() for one in futures]

    def play(
        self,
        key: Key,
        task: Task,
        problem: Problem,
        sampler: "tinker.SamplingClient",
        first: Any,
    ) -> Ended:
        """One episode; again, where its environment ends by itself. It is written down."""
        if key in self.known:
            return self.known.pop(key)

        def sample(turn: int, context: list[int]) -> Sampled:
            if turn == 0:
                return _sampled(self.wait(first).sequences[key.episode])
            seed = samplers.seed_of(f"turn/{self.config.seed}/{key}/{turn}")
            asked = problem._replace(prompt=context)
            request = self.ask(sampler, asked, 1, seed=seed, **self.params(key.split))
            return _sampled(self.wait(request).sequences[0])

        failures = 0
        while failures <= self.config.environment_retries:
            try:
                with self.environment(task) as place:
                    played = self.player.play(task, problem, place, sample)
            except (Died, OSError) as error:
                if self.closing:
                    raise rl.Interrupted from None
                failures += 1
                print(f"{task.name}: an environment has ended by itself: {error}", flush=True)
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

    @contextmanager
    def environment(self, task: Task) -> Iterator[Environment]:
        """An environment for a task, which is ended with the block; or by `close` from outside."""
        config = self.config
        made = made_of(task, self.limits)
        place = environments.open_environment(config.environment, made, unsafe=config.unsafe)
        with self.lock:
            if self.closing:
                raise rl.Interrupted
            self.places.add(place)
        try:
            yield place
        finally:
            place.stop()
            with self.lock:
                self.places.discard(place)

    def begin_evaluation(self, step: int) -> Callable[[], dict[str, float]]:
        """The held-out tasks, once each and greedily: `test/reward` and the like."""
        if not self.held_out:
            return dict
        sampler = self.wait(self.sampler)
        groups_due = self.begin("test", step, range(len(self.held_out)), sampler, 1)

        def scores() -> dict[str, float]:
            groups = groups_due()
            self.write_rollouts(step, "eval_test", groups, f"Running evaluation test {step}")
            return rollouts.held_out_metrics(rollouts.metrics_of(groups) | self.told("test"))

        return scores

    def write_failures(self, step: int, name: str = "") -> dict[str, float]:
        """What environments, verifiers and limits did to a step's episodes."""
        del step, name
        return self.told("train")

    def told(self, split: str) -> dict[str, float]:
        """The counts of what went wrong, the shares of what ended episodes, rewards by task."""
        every = [one for own in self.batch[split] for one in own]
        played = [one.played for one in every if one.played is not None]
        found: dict[str, float] = {
            "env/all/environment_failures": sum(one.failures for one in every),
            "env/all/episodes_lost": len(every) - len(played),
            "env/all/verifier_failures": sum(bool(one.wrong) for one in played),
            "env/all/summaries": _mean(
                [float(sum("summary" in t.metrics for t in p.rollout.turns)) for p in played]
            ),
            "time/episode": _mean([one.seconds for one in played]),
        }
        for why in ("done", "max_turns", "context_limit", "time"):
            found[f"env/all/stop/{why}"] = _mean([float(one.ended == why) for one in played])
        return found

    def write_rollouts(self, step: int, name: str, groups: list[Group], title: str) -> None:
        """The summaries and transcripts of rl.py, and every episode as a trajectory in ATIF."""
        super().write_rollouts(step, name, groups, title)
        own = [
            [one.played for one in group if one.played is not None]
            for group in self.batch["train" if name == "train" else "test"]
        ]
        lines = [
            json.dumps(
                episodes.atif(
                    group.problem,
                    played,
                    self.config.model_name,
                    {"task": group.problem.tag, "iteration": step, "group": number, "traj": place},
                )
            )
            for number, (group, every) in enumerate(
                zip(groups, [one for one in own if one], strict=True)
            )
            for place, played in enumerate(every)
        ]
        self.run.write_iteration(step, f"{name}_trajectories.jsonl", "\n".join(lines) + "\n")


def _rollouts(group: Sequence[Ended]) -> list[rollouts.Rollout]:
    """The episodes of a group that were played, each with what is told of it; the first one tells
    how many were given up, and what that took."""
    found: list[rollouts.Rollout] = []
    lost = [one.failures for one in group if one.played is None]
    for one in group:
        if one.played is not None:
            told = episodes.about(one.played, one.failures)
            if lost and not found:
                told["environment_failures"] += sum(lost)
                told["episodes_lost"] = len(lost)
            found.append(one.played.rollout._replace(about=told))
    return found


def _sampled(sequence: Any) -> Sampled:
    tokens, logprobs = list(sequence.tokens), list(sequence.logprobs)
    return Sampled(tokens, logprobs, sequence.stop_reason == "stop")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


if __name__ == "__main__":
    main(service.parse_arguments(Config))
    service.leave()
