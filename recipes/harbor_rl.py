"""Reinforcement learning on trials of the package `harbor` (Python 3.12 or newer), with its agent
Terminus 2: `python -m sweeper.recipes.harbor_rl tasks=grids/terminal log_path=/tmp/harbor_rl`."""

# The loop is that of terminal.py, with one trial of harbor's as an episode: its agent, environment
# and verifier. The weights are saved for sampling at each step, and harbor's Tinker model samples
# from them. The agent's rollout details have the tokens of each prompt and answer, and the logprobs
# that the answer was sampled with: these are trained on, and nothing is tokenised again. A prompt
# that does not continue the tokens before it (after a summary, or an answer that was cut off)
# begins another sequence. An answer that is cut off at max_tokens is not in harbor's details.
# Trials are sampled without a seed (harbor.py), so a run is not reproducible.
#
# Another agent is trained in the same way if it takes the options of Terminus 2 and records rollout
# details.

import asyncio
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import CancelledError
from typing import Any

import chz

from sweeper.sandbox import Died
from sweeper.sandbox.tasks import Task

from . import harbor, harbor_settings, harbor_trials, hyperparams, service, settings, terminal
from .episodes import Played
from .harbor_trials import Trial
from .rollouts import Problem, Turn
from .service import RecipeError
from .trainer import run

_SAMPLED_SECONDS = 24 * 3600
"""How long the service keeps the weights that a step samples from, in seconds."""
_CANCEL_SECONDS = 30.0


@chz.chz
class Config(settings.Policy, harbor_settings.Agents):
    """Configuration of a run."""

    test_tasks: str | None = chz.field(default=None, doc="folder of tasks to evaluate on")
    test_task_ids: str | None = chz.field(
        default=None,
        doc="evaluate only on these tasks of test_tasks (of tasks, if test_tasks is not set)",
    )
    n_epochs: int | None = chz.field(
        default=None, doc="train on each task this many times, instead of max_steps"
    )
    max_tokens: int = chz.field(default=2048, doc="longest answer sampled, in tokens")
    log_path: str = chz.field(default="runs/harbor_rl", doc="directory for metrics and checkpoints")

    @chz.validate
    def _check(self) -> None:
        harbor_settings.check_agents(self)
        if self.n_epochs is not None:
            settings.check_at_least(self, n_epochs=1)


def lacks(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each requirement of a run that this machine or interpreter does not meet,
    and for each mistake in the run's tasks."""
    return harbor.lacks(values)


def notes(values: Mapping[str, Any]) -> list[str]:
    """Return lines for the plan of a run: the values chosen for `auto`."""
    return hyperparams.notes("harbor_rl", Config, values)


def main(config: Config) -> None:
    """Train or resume. Exits with code 143 after SIGTERM and 130 after SIGINT."""
    run("harbor_rl", TrialTrainer, terminal.with_epochs(config))


class _Running:
    """A trial in progress. All trials share one event loop."""

    def __init__(self, trial: Coroutine[Any, Any, Trial], loop: asyncio.AbstractEventLoop) -> None:
        self._begun, self._over = False, threading.Event()
        self._future = asyncio.run_coroutine_threadsafe(self._run(trial), loop)

    async def _run(self, trial: Coroutine[Any, Any, Trial]) -> Trial:
        self._begun = True
        try:
            return await trial
        finally:
            self._over.set()

    def result(self) -> Trial:
        """Wait for the trial. Raises `Died` if it was stopped."""
        try:
            return self._future.result()
        except CancelledError:
            raise Died("the trial was stopped") from None

    def stop(self) -> None:
        """Cancel the trial, and wait at most `_CANCEL_SECONDS` for harbor to end the
        environment."""
        self._future.cancel()
        if self._begun:
            self._over.wait(_CANCEL_SECONDS)


class TrialTrainer(terminal.EpisodeTrainer):
    """The loop of terminal.py, with trials of harbor as episodes."""

    config: Any

    @staticmethod
    def load_data(config: Any) -> Any:
        """Read the tasks. Raises RecipeError if a task has a mistake, or if this interpreter has no
        harbor."""
        values = chz.asdict(config)
        if lacking := lacks(values):
            raise RecipeError(lacking[0])
        return terminal.terminal_tasks.read(values)

    def open_player(self) -> None:
        """Start the event loop of the trials, and set the environment variables that tell harbor
        the service's address."""
        harbor.use_service(self.connection.url)
        self.agent = self.config.agent
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="trials", daemon=True).start()
        self.folder = tempfile.TemporaryDirectory(prefix="harbor-trials-")
        self.numbers, self.saved = itertools.count(), itertools.count()

    def close(self) -> None:
        """Cancel all trials, and stop their event loop."""
        super().close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.folder.cleanup()

    def problem(self, task: Task) -> Problem:
        """Return a task as a problem. Its user message is the task's instruction, shortened. It has
        no prompt tokens, because the agent makes the prompts."""
        prompt = harbor_trials.prompt_of(task.steps[0].instruction)
        return Problem([{"role": "user", "content": prompt}], [], "", 0, 0, task.name)

    def open_sampler(self) -> Any:
        """Begin to save the current weights for sampling. Return a future of the response, which
        has the address of the saved weights."""
        return self.training.save_weights_for_sampler(
            f"trials-{next(self.saved)}", ttl_seconds=_SAMPLED_SECONDS
        )

    def ask_first(self, sampler: Any, problem: Problem, key: terminal.Key, size: int) -> None:
        """Do nothing, because the agents send the requests."""

    def attempt(
        self, key: terminal.Key, task: Task, problem: Problem, sampler: Any, first: Any
    ) -> Played:
        """Run one trial. Raises `Died` if the environment failed, or if the agent recorded no
        sampled tokens."""
        del problem, first
        config = self.config
        temperature = self.params(key.split)["temperature"]
        sampling = harbor.Sampling(config.max_tokens, temperature, sampler.path)
        agent = harbor.agent_of(config, config.model_name, sampling, tinker=True)
        name = f"{task.name.replace('/', '-')}__{next(self.numbers)}"
        folder = os.path.join(self.folder.name, name)
        trial_run = harbor.run_trial(config, task, key.episode, agent, folder)
        with self.held(_Running(trial_run, self.loop)) as running:
            trial = running.result()
        if trial.failed:
            raise Died(trial.failed)
        if not trial.rollout.tokens:
            raise Died(
                f"the agent {config.agent} recorded no sampled tokens: it keeps no rollout "
                f"details, or every answer was cut off at max_tokens={config.max_tokens}"
            )
        return self.played(trial)

    def played(self, trial: Trial) -> Played:
        """Return a trial as an episode."""
        rollout, turns, taken = trial.rollout, list[Turn](), 0
        for turn in rollout.turns:
            tokens = rollout.tokens[taken : taken + turn.size]
            text = self.tokenizer.decode(tokens, skip_special_tokens=True)
            turns.append(turn._replace(text=text))
            taken += turn.size
        text = "\n".join(turn.text for turn in turns)
        rollout = rollout._replace(turns=tuple(turns), text=text)
        ended = "done" if rollout.ended else "time"
        if ended == "done" and len(rollout.turns) >= self.config.max_turns:
            ended = "max_turns"
        seconds = trial.rollout.about["seconds"]
        return Played(rollout._replace(about={}), ended, [trial.judged], seconds, time.time())


if __name__ == "__main__":
    service.run_program(main, Config)
