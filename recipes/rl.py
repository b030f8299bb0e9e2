"""Reinforcement learning with GRPO: sample groups of answers and reinforce those above the mean:
`python -m sweeper.recipes.rl task=sorting length=2 letters=2 log_path=/tmp/rl`."""

# Each step asks `groups_per_batch` questions, `group_size` times each. The advantage of an answer
# is its reward minus the mean reward of its group; all tokens of the answer share it. Groups with
# equal rewards carry no signal and are dropped, unless `entropy_coef` or `kl_penalty_coef` is set.
# The questions are problems generated for a task, or come from a JSONL file. `load_checkpoint_path`
# starts from trained weights: to learn from a sparse reward, a model must already give some right
# answers. The reward comes from the answer's text, from a user function (`reward_function`, see
# sandbox.py, isolated.py) or from a preference model (`reward_model`, reward.py).
#
# With `max_steps_off_policy` above 0, batches are sampled ahead: while the run trains on one batch,
# it samples the next ones from weights that are at most that many steps old. At each checkpoint,
# sampling restarts from the saved weights, even in a run that is not stopped. So a resumed run
# reaches the same values.
#
# A run that is stopped (SIGTERM, Ctrl-C) and started again with the same log_path resumes from its
# last checkpoint: the seed of each sample depends only on the run's seed, the step and the
# question.

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import chz

from . import (
    estimates,
    evaluating,
    hyperparams,
    isolated,
    policy_gradient,
    preview,
    rewards,
    rollouts,
    samplers,
    service,
    settings,
    tasks,
)
from .policy_gradient import Update, sampling_seed, split_evenly
from .rollouts import Group, Problem, Rollout
from .sandbox import Sandbox
from .trainer import Trainer, run

if TYPE_CHECKING:
    import tinker

    from sweeper.telemetry import Telemetry


@chz.chz
class Config(settings.Policy, settings.Settings, settings.Evaluated):
    """Configuration of a run. The same configuration gives the same metrics."""

    reward: Literal["dense", "sparse"] = chz.field(
        default="dense",
        doc="dense: share of right positions; sparse: 1 if the whole answer is right",
    )
    reward_function: str | None = chz.field(
        default=None,
        doc="instead of reward: path/to/file.py:score, called as score(question, response, answer)",
    )
    function_seconds: float = chz.field(
        default=5.0, doc="time limit of a call of the reward_function"
    )
    function_megabytes: int = chz.field(default=512, doc="memory limit of the reward_function")
    function_environment: Literal["process", "bubblewrap"] = chz.field(
        default="process",
        doc="where the reward_function is called; bubblewrap: isolated like terminal tasks",
    )
    reward_model: str | None = chz.field(
        default=None,
        doc="instead of reward: log_path of a preference model (a run of `reward`), or tinker://...",
    )
    log_path: str = chz.field(default="runs/rl", doc="directory for metrics and checkpoints")

    @chz.validate
    def _check(self) -> None:
        settings.check_settings(self)
        settings.check_at_least(self, function_megabytes=32)
        settings.check_positive(self, "function_seconds")
        if self.reward_function is not None and self.reward_model is not None:
            raise ValueError("reward_function and reward_model are both set: remove one")


def lacks(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each mistake in the files of a run, and for each program or package that
    the run needs and this machine lacks."""
    reasons = [*settings.lacks(values, tasks.question), *evaluating.lacks(values)]
    if values.get("reward_function") is not None:
        reasons += settings.lacking_function(values, "reward_function")
    apart = values.get("function_environment") == "bubblewrap"
    if apart and (lacking := isolated.missing()) is not None:
        reasons.append(f"function_environment=bubblewrap: {lacking}")
    return reasons


TRIED = 4
"""The number of right answers on which a reward function is tried before the first step."""


def notes(values: Mapping[str, Any]) -> list[str]:
    """Return lines for the plan of a run: the values chosen for `auto`, and notes on its data."""
    return [
        *hyperparams.notes("rl", Config, values),
        *settings.notes(values),
        *evaluating.notes(values),
    ]


def main(config: Config) -> None:
    """Train or resume. Exits with code 143 after SIGTERM and 130 after SIGINT."""
    run("rl", GroupTrainer, config)


def examples(values: Mapping[str, Any], count: int) -> preview.Document:
    """Return the first prompts that a run would sample from; see preview.py."""
    return preview.of_questions(settings.made(Config, values), count)[0]


def samples(values: Mapping[str, Any], count: int, checkpoint: str) -> preview.Document:
    """Return the first prompts of a run, with answers of `checkpoint` and the answers' rewards."""
    from .sampled_preview import of_groups

    return of_groups(settings.made(Config, values), count, checkpoint)


def estimate(values: dict[str, Any]) -> estimates.Counts:
    """Estimate the tokens of a run in which no group is dropped; see estimates.py."""
    config = settings.made(Config, values)
    tally = estimates.tally_groups(config)
    evaluating.tally(tally, config)
    train, _ = estimates.split_sizes(config)
    answers = config.max_steps * config.groups_per_batch * config.group_size
    if config.kl_penalty_coef:
        reference = estimates.model_of(config, config.kl_reference)
        tally.add(
            reference, "prefill", answers * (train.prompt + estimates.sampled_size(config, train))
        )
    if config.reward_model is not None:
        read = estimates.judged_size(config)
        held_out = estimates.evaluations(config) * config.test_size
        judged = answers + held_out + train.number  # each right answer is judged once
        tally.add(config.model_name, "prefill", judged * read)
    return tally.counts()


SampleRequest: TypeAlias = "tinker.APIFuture[tinker.SampleResponse]"
"""A pending request for answers."""


class Interrupted(Exception):
    """Raised if a signal arrives while a step waits for its samples. The step is discarded."""


class GroupTrainer(Trainer):
    """The training loop: sample, reward, train, then sample from the updated weights."""

    config: Any
    shown: ClassVar = ("env/all/reward/total", "env/all/correct", "test/reward", "test/accuracy")

    @staticmethod
    def load_data(config: Any) -> Any:
        """Load the questions with their right answers."""
        return settings.load_data(config, tasks.question)

    def prepare(self, data: tasks.Split) -> None:
        """Render the questions, and open the reward and the reference model."""
        self.questions = self.problems(data.train)
        self.held_out = self.problems(data.test)
        config = self.config
        self.tag = Path(config.data).stem if config.data is not None else config.task
        self.reward = self.open_reward()
        self.reference = self.open_reference()

    @cached_property
    def telemetry(self) -> "Telemetry":
        """The sender of episodes to the OpenTelemetry collector of the setting `otlp`."""
        from sweeper.telemetry import Telemetry

        return Telemetry(self.config.otlp)

    def open_reward(self) -> rewards.Reward:
        """Return the configured reward. If it is a function, test it on a few right answers."""
        config = self.config
        if config.reward_function is not None:
            limits = config.function_seconds, config.function_megabytes
            kind = (
                Sandbox if config.function_environment == "process" else isolated.IsolatedFunction
            )
            judge = rewards.FunctionReward(kind(config.reward_function, *limits))
            judge.check(self.questions[:TRIED])
            return judge
        if config.reward_model is not None:
            model = config.model_name, config.reward_model
            return rewards.ModelReward(self.connection, self.tokenizer, *model)
        return rewards.TextReward(config.reward == "dense")

    def open_reference(self) -> "tinker.SamplingClient | None":
        """Return the reference model of the KL penalty, or None without a penalty."""
        if not self.config.kl_penalty_coef:
            return None
        return samplers.open_named(
            self.connection, self.config.kl_reference, self.config.model_name, self.parent
        )

    def problems(self, conversations: list[tasks.Conversation]) -> list[Problem]:
        """Convert conversations to problems; see `rollouts.problems_of`."""
        return rollouts.problems_of(self.tokenizer, conversations, self.config)

    def train_steps(self) -> int:
        """Run the remaining steps, until a signal arrives. Return the number of finished steps of
        the run."""
        step = self.run.start_step
        self.begin_sampler()
        while step < self.config.max_steps and self.stop.signum is None:
            try:
                self.advance(step)
            except Interrupted:
                break
            step += 1
        return step

    def begin_sampler(self) -> None:
        """Open a sampler on the current weights, and forget all pending batches."""
        self.sampler = self.open_sampler()
        self.under_way: dict[int, Callable[[], list[Group]]] = {}

    def begin_snapshot(self) -> "tinker.APIFuture[tinker.SamplingClient]":
        """Return `sampler`, which is open already; see `Trainer.begin_snapshot`."""
        return self.sampler

    def open_sampler(self) -> Any:
        """Return a future of a client that samples with the current weights."""
        return self.training.save_weights_and_get_sampling_client()

    def advance(self, step: int) -> None:
        """Save a checkpoint if one is due, then run the step."""
        if self.save_due(step):
            self.record(step, self.save(step))
        self.train_step(step)

    def close(self) -> None:
        """Close the reward function or model."""
        self.reward.close()

    def resumable(self, step: int) -> bool:
        """Return whether the batch of `step` is sampled from the weights at the beginning of
        `step`. A run can resume only at such a step, because a stopped run keeps no samples."""
        return self.begun_at(step) == step

    def begun_at(self, step: int) -> int:
        """Return the step whose weights sample the batch of `step`. It is `step` minus
        `max_steps_off_policy`, but never before the latest step (up to `step`) at which a
        checkpoint is due. If `save_every` is 0, it is never before step 0."""
        every = self.config.save_every
        anew = step // every * every if every else 0
        return max(step - self.config.max_steps_off_policy, anew)

    def sample_ahead(self, step: int) -> Callable[[], list[Group]]:
        """Request each batch for which `begun_at` returns `step`. The returned function waits for
        the batch of `step`, which may have been requested in an earlier step."""
        last = min(step + self.config.max_steps_off_policy, self.config.max_steps - 1)
        for batch in range(step, last + 1):
            if self.begun_at(batch) == step:
                self.under_way[batch] = self.begin_sampling(batch)
        return self.under_way.pop(step)

    def train_step(self, step: int) -> None:
        """Run a step: wait for the samples, train on them, and log a line of metrics."""
        config = self.config
        groups_due = self.sample_ahead(step)
        scores = self.begin_scores(step)
        groups = groups_due()
        judging = self.judging(step, groups)
        if judging.broken is not None:
            self.log(step, rollouts.metrics_of(groups) | self.failure_metrics(judging))
            judging.check()
        used = [group for group in groups if not (self.drops_constant and group.constant)]
        with self.timed("reference"):
            by_token, extra = self.token_advantages(used)
        update = self.update(step, used, by_token)
        self.sampler = self.open_sampler()
        self.write_rollouts(step, "train", groups, f"RL Iteration {step}")
        logprobs = [p for group in groups for r in group.rollouts for p in r.logprobs]
        metrics: dict[str, Any] = {
            "progress/batch": step,
            "progress/done_frac": (step + 1) / config.max_steps,
            "optim/lr": settings.learning_rate_at(config, step),
            "optim/entropy": -sum(logprobs) / len(logprobs),
            **rollouts.metrics_of(groups),
            **self.failure_metrics(judging),
            **extra,
            "optim/staleness": step - self.begun_at(step),
            "num_groups": len(groups),
            "num_groups_dropped": len(groups) - len(used),
            **update.metrics(self.wait, self.timed),
        }
        if scores:
            with self.timed("eval"):
                metrics |= scores()
        self.log(step, metrics)

    @property
    def drops_constant(self) -> bool:
        """Whether groups whose rewards are all equal are dropped. By default they are dropped. With
        an entropy bonus or a KL penalty they are kept, because the bonus and the penalty also train
        on answers with equal rewards."""
        config = self.config
        if config.remove_constant_reward_groups is not None:
            return config.remove_constant_reward_groups
        return not (config.entropy_coef or config.kl_penalty_coef)

    def begin_sampling(self, step: int) -> Callable[[], list[Group]]:
        """Submit the questions of a step. The returned function waits for the judged answers."""
        config, problems = self.config, self.asked_at(step)
        with self.timed("save"):
            sampler = self.wait(self.sampler)
        requests = [
            self.ask(
                sampler,
                problem,
                config.group_size,
                max_tokens=config.max_tokens,
                temperature=config.temperature,
                seed=sampling_seed(config.seed, step, question),
            )
            for question, problem in enumerate(problems)
        ]

        def groups() -> list[Group]:
            with self.timed("sampling"):
                begun = [self.begin_group(*pair) for pair in zip(problems, requests, strict=True)]
            with self.timed("reward"):
                return [judged() for judged in begun]

        return groups

    def asked_at(self, step: int) -> list[Problem]:
        """Return the questions of a step."""
        config = self.config
        size, total = config.groups_per_batch, len(self.questions)
        return [self.questions[i] for i in tasks.batch_indices(step, size, total, config.seed)]

    def ask(
        self, sampler: "tinker.SamplingClient", problem: Problem, count: int, **params: Any
    ) -> "SampleRequest":
        """Submit a request for `count` answers."""
        import tinker

        prompt = tinker.ModelInput.from_ints(problem.prompt)
        return sampler.sample(prompt, count, tinker.SamplingParams(stop=[problem.end], **params))

    def begin_group(self, problem: Problem, request: "SampleRequest") -> Callable[[], Group]:
        """Wait for the answers to a question, and begin to judge them. The returned function waits
        for the rewards."""
        begun: list[tuple[Any, str, bool, Callable[[], float]]] = []
        for sequence in self.wait(request).sequences:
            text = rollouts.text_of(self.tokenizer, sequence.tokens)
            ended = sequence.stop_reason == "stop"
            begun.append((sequence, text, ended, self.reward.begin(problem, text, ended)))

        def group() -> Group:
            samples: list[Rollout] = []
            for sequence, text, ended, reward in begun:
                tokens, logprobs = list(sequence.tokens), list(sequence.logprobs)
                correct = rollouts.exact(problem.answer, text, ended)
                likeliest = tuple(row or () for row in sequence.topk_logprobs or ())
                rollout = Rollout(tokens, logprobs, text, ended, reward(), correct)
                samples.append(rollout._replace(likeliest=likeliest))
            return Group(problem, samples)

        return group

    def token_advantages(self, groups: list[Group]) -> tuple[list[list[float]], dict[str, float]]:
        """Return a list of token advantages for each answer of each group, and the metrics of the
        KL penalty (empty without a penalty). A token's advantage is the answer's reward relative
        to its group, plus the token's entropy bonus and KL penalty."""
        config = self.config
        logprobs = [rollout.logprobs for group in groups for rollout in group.rollouts]
        mean = sum(map(sum, logprobs)) / max(sum(map(len, logprobs)), 1)
        earned = [
            advantage
            for group in groups
            for advantage in policy_gradient.advantages(group.rewards, config.normalize_std)
        ]
        advantages = [
            [
                advantage + extra
                for extra in policy_gradient.entropy_bonus(of_answer, mean, config.entropy_coef)
            ]
            for advantage, of_answer in zip(earned, logprobs, strict=True)
        ]
        if self.reference is None:
            return advantages, {}
        reference = self.logprobs_by(self.reference, groups)
        penalty, metrics = policy_gradient.kl_penalty(logprobs, reference, config.kl_penalty_coef)
        pairs = zip(advantages, penalty, strict=True)
        return [[a + b for a, b in zip(*both, strict=True)] for both in pairs], metrics

    def logprobs_by(
        self, sampler: "tinker.SamplingClient", groups: list[Group]
    ) -> list[list[float]]:
        """Return, for each answer, the logprobs of its tokens under the model of `sampler`."""
        answers = [(group.problem.prompt, r) for group in groups for r in group.rollouts]
        requests: list[tuple[int, Callable[[], list[float]], list[int]]] = []
        for number, answer in enumerate(answers):
            for part in rollouts.segments(*answer):
                tokens, places = rollouts.whole(part.prompt, part.rollout)
                first = places[0]
                last = len(tokens) - first
                logprobs = samplers.begin_logprobs(self.connection, sampler, tokens, last)
                requests.append((number, logprobs, [place - first for place in places]))
        per_answer: list[list[float]] = [[] for _ in answers]
        for number, logprobs, places in requests:
            every = logprobs()
            per_answer[number] += [every[place] for place in places]
        return per_answer

    def update(self, step: int, groups: list[Group], by_token: Sequence[Any]) -> Update:
        """Submit the gradient passes over a batch, and the optimizer's steps."""
        config = self.config
        answers = [(group.problem.prompt, r) for group in groups for r in group.rollouts]
        pairs: list[tuple[Rollout, tinker.Datum]] = [
            (part.rollout, self.to_datum(part.prompt, part.rollout, weights[part.places]))
            for answer, weights in zip(answers, by_token, strict=True)
            for part in rollouts.segments(*answer)
        ]
        passes: list[tinker.APIFuture[tinker.ForwardBackwardOutput]] = []
        steps: list[tinker.APIFuture[tinker.OptimStepResponse]] = []
        for part in split_evenly(pairs, config.num_substeps):
            data = [datum for _, datum in part]
            passes.append(self.training.forward_backward(data, self.loss_fn))
            steps.append(self.training.optim_step(self.adam(step)))
        return Update([rollout for rollout, _ in pairs], passes, steps)

    @property
    def loss_fn(self) -> Any:
        """The name of the service's loss function."""
        return self.config.loss_fn

    def to_datum(self, prompt: list[int], rollout: Rollout, by_token: Any) -> "tinker.Datum":
        """Return the training datum of an answer. `by_token` has the advantage of each sampled
        token, from `token_advantages`."""
        return policy_gradient.to_datum(prompt, rollout, by_token)

    def begin_evaluation(self, step: int) -> Callable[[], dict[str, float]]:
        """Submit the held-out questions for greedy sampling. The returned function waits for the
        metrics `test/...`."""
        sampler = self.wait(self.sampler)
        requests = [
            # At most as long as the right answer with its end, because any longer answer is wrong.
            self.ask(sampler, problem, 1, max_tokens=problem.size, temperature=0.0)
            for problem in self.held_out
        ]

        def scores() -> dict[str, float]:
            pairs = zip(self.held_out, requests, strict=True)
            begun = [self.begin_group(problem, request) for problem, request in pairs]
            groups = [judged() for judged in begun]
            judging = self.judging(step, groups, "eval_test_")
            failed = self.failure_metrics(judging, "eval_test_")
            self.write_rollouts(step, "eval_test", groups, f"Running evaluation test {step}")
            return rollouts.held_out_metrics(rollouts.metrics_of(groups) | failed)

        return scores

    def judging(self, step: int, groups: list[Group], name: str = "") -> rewards.Judging:
        """Record the answers that could not be judged. Return the number of answers and of
        failures."""
        failures, self.reward.failures = self.reward.failures, []
        answers = sum(len(group.rollouts) for group in groups)
        judge = f"reward_function {self.config.reward_function}"
        return rewards.judging(self.run, step, judge, failures, answers, name)

    def failure_metrics(self, judging: rewards.Judging, name: str = "") -> dict[str, float]:
        """Return metrics of answers that could not be judged; empty without `reward_function`."""
        del name
        return {} if self.config.reward_function is None else judging.metrics("reward")

    def write_rollouts(self, step: int, name: str, groups: list[Group], title: str) -> None:
        """Write a file with a summary of each episode, and a file with a transcript of the first
        `num_groups_to_log` groups."""
        split = "train" if name == "train" else name.replace("_", "/", 1)
        sampled_at = self.begun_at(step) if name == "train" else step
        summaries = rollouts.summaries(groups, split, step, self.tag, sampled_at)
        self.run.write_iteration(step, f"{name}_rollout_summaries.jsonl", summaries)
        self.telemetry.episodes(name, summaries)
        if logged := groups[: self.config.num_groups_to_log]:
            text = rollouts.transcript(title, logged, datetime.now(UTC))
            self.run.write_iteration(step, f"{name}_logtree.json", text)


if __name__ == "__main__":
    service.run_program(main, Config)
