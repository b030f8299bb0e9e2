# pyright: reportMissingImports=false
"""Evaluates agents on terminal tasks with the package `harbor`, in an interpreter that has the
package: `python -m sweeper.recipes.harbor tasks=grids/terminal agent=oracle
log_path=/tmp/trials`."""

# Each task is tried `attempts` times, `n_parallel_envs` at once. `agent` is one of harbor's agents
# or the import path of a class. `terminus-2` samples from the service through harbor's own Tinker
# model, and records the exact tokens and logprobs of each turn unless it summarises. `environment`
# is `bubblewrap` (sweeper's, without Docker), one of harbor's (docker, podman, daytona, e2b, modal
# ...), or the import path of a class. harbor's model has one seed for all turns of a trial, which
# would draw the same numbers in each of them. So trials are sampled without a seed, and two runs of
# one configuration differ.
#
# A finished trial is a line of `episodes.jsonl` and is not run again: a run that was stopped or
# killed resumes with the missing trials. At the end the run writes summaries and trajectories like
# any evaluation of episodes, so that cells can be compared task by task, and metrics with pass@k. A
# trial whose environment died is run again, `environment_retries` times, and then left out; it does
# not count as a reward of 0.

import asyncio
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import chz

from sweeper import sandbox
from sweeper.sandbox.tasks import Task

from . import (
    harbor_trials,
    rewards,
    rollouts,
    rundir,
    scores,
    service,
    settings,
    terminal_tasks,
    tracking,
)
from .harbor_settings import TERMINUS, Agents, check_agents, options_of
from .harbor_trials import Trial
from .rollouts import Group, Problem
from .service import RecipeError

_OURS = {"bubblewrap": "sweeper.sandbox.tasks.for_harbor:Bubblewrap"}
_FREE = settings.FREE | {"attempts", "environment_retries"}
_LOOK_SECONDS = 0.2


@chz.chz
class Config(settings.Place, Agents):
    """Configuration of a run."""

    attempts: int = chz.field(default=1, doc="trials of each task; more than one gives pass@k")
    max_tokens: int = chz.field(default=2048, doc="terminus-2: longest answer, in tokens")
    temperature: float = chz.field(default=0.7, doc="terminus-2: sampling temperature")
    log_path: str = chz.field(default="runs/harbor", doc="directory for metrics and trials")

    @chz.validate
    def _check(self) -> None:
        check_agents(self)
        settings.check_at_least(self, attempts=1, max_tokens=1)


def lacks(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each requirement of a run that this machine or interpreter does not meet,
    and for each mistake in the run's tasks."""
    reasons: list[str] = []
    if importlib.util.find_spec("harbor") is None:
        reasons.append(
            "the package harbor is not in this interpreter (pip install harbor, Python 3.12 or "
            "newer): set launch.python to an interpreter that has it"
        )
    if values.get("environment", "bubblewrap") == "bubblewrap":
        lacking = sandbox.missing("bubblewrap")
        reasons += [f"environment=bubblewrap: {lacking}"] if lacking else []
    return reasons + terminal_tasks.mistakes(values) + terminal_tasks.older(values)


def main(config: Config) -> None:
    """Run the missing trials. Exits with code 143 after SIGTERM and 130 after SIGINT."""
    with service.errors_in_one_line(), service.stop_on_signals() as stop:
        values = chz.asdict(config)
        directory = rundir.open_run(config.log_path, values, _FREE)
        if lacking := lacks(values):
            raise RecipeError(lacking[0])
        tasks = terminal_tasks.read(values).train
        directory.write_config(values)
        directory.drop_steps_from(0)
        with tracking.tracked(config, directory, values) as tracker:
            if not Trials(config, directory, stop, tracker).run(tasks):
                raise SystemExit(stop.exit_code)


class Sampling(NamedTuple):
    """The sampling settings of an agent: the maximum number of tokens of an answer, the
    temperature, and the address of the weights (None: the base model)."""

    max_tokens: int
    temperature: float
    weights: str | None


def use_service(url: str) -> None:
    """Set the environment variables that tell harbor's Tinker model the service's address."""
    if url:
        os.environ["TINKER_BASE_URL"] = url
    os.environ.setdefault("TINKER_API_KEY", "tml-local")


def agent_of(
    config: Agents, model_name: str, sampling: Sampling, *, tinker: bool
) -> dict[str, Any]:
    """Return harbor's configuration of the agent. With `tinker`, add options for Terminus 2, which
    then samples through harbor's Tinker model and records the tokens."""
    options = options_of(config.agent_options)
    named = {"import_path" if ":" in config.agent else "name": config.agent}
    if not tinker:
        return {**named, "model_name": model_name, "kwargs": options}
    model: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "context_limit": config.context_limit,
        "renderer_name": config.renderer_name,
    }
    if sampling.weights is not None:
        model["model_path"] = sampling.weights
    terminus = {
        "llm_backend": "tinker",
        "llm_kwargs": model,
        "collect_rollout_details": True,
        "temperature": sampling.temperature,
        "max_turns": config.max_turns,
        "enable_summarize": config.summarise,
        "proactive_summarization_threshold": config.summary_margin,
        "record_terminal_session": False,
        "suppress_max_turns_warning": True,
    }
    return {**named, "model_name": model_name, "kwargs": terminus | options}


async def run_trial(
    config: Agents, task: Task, attempt: int, agent: Mapping[str, Any], folder: str
) -> Trial:
    """Run a trial with harbor in `folder`. Return the results, and remove the folder."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # cost maps are not used
    from harbor.models.trial.config import TrialConfig
    from harbor.trial.trial import Trial as Running

    place = config.environment
    by_path = _OURS.get(place, place if ":" in place else None)
    trials, name = os.path.split(folder)
    settings = {
        "task": {"path": os.path.abspath(task.folder)},
        "trial_name": name,
        "trials_dir": trials,
        "timeout_multiplier": config.timeout_multiplier,
        "agent": agent,
        "environment": {"import_path": by_path} if by_path else {"type": place},
    }
    try:
        running = await Running.create(TrialConfig.model_validate(settings))
        await running.run()
        return harbor_trials.read(folder, task.name, attempt)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Trials:
    """The loop that runs the missing trials and records the finished ones."""

    def __init__(
        self,
        config: Config,
        directory: rundir.RunDirectory,
        stop: service.Stop,
        tracker: tracking.Tracker,
    ) -> None:
        self.config, self.directory = config, directory
        self.stop, self.tracker = stop, tracker
        self.suite = config.dataset or os.path.basename(os.path.normpath(config.tasks))
        self.ended: dict[tuple[str, int], Trial] = {}
        self.failures: dict[tuple[str, int], int] = {}
        self.lost: list[tuple[str, int]] = []

    def run(self, tasks: Sequence[Task]) -> bool:
        """Run the missing trials, and record each one that finishes. Return False if a signal
        stopped the run."""
        wanted = [(task, n) for task in tasks for n in range(self.config.attempts)]
        for record in self.directory.read_episodes():
            trial = harbor_trials.from_document(record)
            self.ended[trial.task, trial.attempt] = trial
        missing = [(task, n) for task, n in wanted if (task.name, n) not in self.ended]
        print(f"trials to run: {len(missing)} of {len(wanted)}", flush=True)
        if self.directory.last_record is None:  # a resumed run must find its mark
            self.directory.record_checkpoint({"name": "trials", "batch": 0} | self.tracker.mark)
        self.stop.graceful = True
        if missing:
            if self.config.agent == TERMINUS:
                connection = service.connect(self.config.base_url, {"recipe": "harbor"})
                use_service(connection.url)
                connection.close()
            with tempfile.TemporaryDirectory(prefix="harbor-trials-") as folder:
                asyncio.run(self._run_all(missing, len(wanted), folder))
        if self.stop.signum is not None:
            print(f"stopped by signal {self.stop.signum}", flush=True)
            return False
        judging = self._log(wanted)
        self._write(tasks, wanted)
        judging.check()
        final = {"name": "final", "batch": len(wanted), "final": True} | self.tracker.mark
        if self.directory.last_record != final:
            self.directory.record_checkpoint(final)
        return True

    async def _run_all(self, missing: Sequence[tuple[Task, int]], count: int, folder: str) -> None:
        """Run trials, at most `n_parallel_envs` at the same time. After a signal, no trial
        begins, and running trials are cancelled."""
        waiting = list(missing)
        running: set[asyncio.Task[None]] = set()
        while (waiting or running) and self.stop.signum is None:
            while waiting and len(running) < self.config.n_parallel_envs:
                task, number = waiting.pop(0)
                running.add(asyncio.create_task(self._try(task, number, folder)))
            done, running = await asyncio.wait(
                running, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            for trial in done:
                trial.result()
                print(f"step {len(self.ended)}/{count}", flush=True)
        for trial in running:
            trial.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _try(self, task: Task, number: int, folder: str) -> None:
        """Run one trial, and record it. If the environment dies, run the trial again, at most
        `environment_retries` times."""
        key = task.name, number
        for again in range(self.config.environment_retries + 1):
            name = f"{task.name.replace('/', '-')}__{number}-{again}"
            trial = await self._trial(task, number, name, folder)
            if not trial.failed:
                about = dict(trial.rollout.about) | {"environment_failures": float(again)}
                trial = trial._replace(rollout=trial.rollout._replace(about=about))
                self.ended[key] = trial
                self.directory.append_episode({"step": 0, **trial.document()})
                return
            self.failures[key] = again + 1
            print(f"{task.name}: a trial ended in an error: {trial.failed}", flush=True)
        self.lost.append(key)

    async def _trial(self, task: Task, number: int, name: str, folder: str) -> Trial:
        config = self.config
        path = config.load_checkpoint_path
        weights = None if path is None else rundir.sampler_path(path)
        sampling = Sampling(config.max_tokens, config.temperature, weights)
        agent = agent_of(config, config.model_name, sampling, tinker=config.agent == TERMINUS)
        return await run_trial(config, task, number, agent, os.path.join(folder, name))

    def _in_order(self, wanted: Sequence[tuple[Task, int]]) -> list[Trial]:
        keys = [(task.name, number) for task, number in wanted]
        return [self.ended[key] for key in keys if key in self.ended]

    def _log(self, wanted: Sequence[tuple[Task, int]]) -> rewards.Judging:
        """Log the metrics of the trials. Return the number of trials, and the number of trials that
        could not be judged."""
        trials = self._in_order(wanted)
        if not trials:
            raise RecipeError("the environments of all trials died, so there are no results")
        by_task: dict[str, list[dict[str, Any]]] = {}
        for trial in trials:
            by_task.setdefault(trial.task, []).append({"score": trial.rollout.reward})
        overall = scores.scores_of(list(by_task.values()))
        by_suite = {f"eval/{self.suite}/{key}": value for key, value in overall.items()}
        count = len(trials)
        failures = [
            rewards.Failure(f"{trial.task}: {trial.judged.wrong}", trial.task, trial.rollout.text)
            for trial in trials
            if trial.judged.wrong
        ]
        judging = rewards.judging(self.directory, 0, "the verifier", failures, count, "eval_test_")
        metrics = {
            "progress": 1.0,
            "test/reward": overall["score"],
            "test/accuracy": sum(trial.rollout.correct for trial in trials) / count,
            "test/num_items": len(by_task),
            "env/all/turns_per_episode": sum(len(trial.rollout.turns) for trial in trials) / count,
            "env/all/total_episodes": count,
            "env/all/environment_failures": sum(self.failures.values()),
            "env/all/episodes_lost": len(self.lost),
            **judging.metrics("verifier"),
            "env/all/exact_tokens": sum(trial.exact for trial in trials) / count,
            "time/episode": sum(trial.rollout.about["seconds"] for trial in trials) / count,
            **by_suite,
        }
        self.directory.log_metrics(len(wanted), metrics)
        self.tracker.log(len(wanted), metrics)
        print(f"test/reward {metrics['test/reward']:.4f}", flush=True)
        return judging

    def _write(self, tasks: Sequence[Task], wanted: Sequence[tuple[Task, int]]) -> None:
        """Write the summaries, the transcript and the trajectories of all finished trials."""
        groups: list[Group] = []
        lines: list[str] = []
        for place, task in enumerate(tasks):
            trials = [trial for trial in self._in_order(wanted) if trial.task == task.name]
            prompt = harbor_trials.prompt_of(task.steps[0].instruction)
            problem = Problem([{"role": "user", "content": prompt}], [], "", 0, 0, task.name)
            if trials:
                groups.append(Group(problem, [trial.rollout for trial in trials]))
            for trial in trials:
                extra = {"reward": trial.rollout.reward, "task": trial.task, "iteration": 0}
                extra |= {"group": place, "traj": trial.attempt}
                extra_before = dict(trial.trajectory.get("extra") or {})
                lines.append(json.dumps(trial.trajectory | {"extra": extra_before | extra}) + "\n")
        self.directory.write_iteration(
            0,
            "eval_test_rollout_summaries.jsonl",
            rollouts.summaries(groups, "eval/test", 0, self.suite),
        )
        text = rollouts.transcript("harbor's trials", groups, datetime.now(UTC))
        self.directory.write_iteration(0, "eval_test_logtree.json", text)
        self.directory.write_iteration(0, "eval_test_trajectories.jsonl", "".join(lines))


if __name__ == "__main__":
    service.run_program(main, Config)
