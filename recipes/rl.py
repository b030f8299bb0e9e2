"""Reinforcement learning with GRPO: sample answers, learn from those better than their group.

    python -m sweeper.recipes.rl task=sorting length=2 letters=2 log_path=/tmp/rl

Each step asks `groups_per_batch` questions, `group_size` times each. What an answer earned
above its group's mean is its advantage, shared by all its tokens; groups whose answers earned
all the same teach nothing and are dropped, unless `entropy_coef` has something to tell them. The
questions are problems generated for a task, or come from a JSONL file. `load_checkpoint_path`
starts from weights trained before, as a model must already be right now and then to learn from a
sparse reward.

Stopped at any time (SIGTERM, Ctrl-C) and started again with the same log_path, a run goes on
from its last checkpoint: the seed of each sample is a function of the run's seed, the step and
the question alone.
"""

import math
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import chz

from . import chat, rollouts, service, settings, tasks
from .rollouts import Group, Problem, Rollout
from .trainer import Trainer, run

if TYPE_CHECKING:
    import tinker


@chz.chz
class Config(settings.Settings):
    """What a run is; the same configuration gives the same metrics."""

    reward: Literal["dense", "sparse"] = chz.field(
        default="dense", doc="dense: the share of positions right; sparse: 1 for the whole answer"
    )
    groups_per_batch: int = chz.field(default=16, doc="questions a step")
    group_size: int = chz.field(default=16, doc="answers sampled to each question")
    max_tokens: int = chz.field(default=16, doc="longest answer sampled, in tokens")
    temperature: float = chz.field(
        default=1.0, doc="of sampling; other than 1.0 it is not the model's own distribution"
    )
    normalize_std: bool = chz.field(
        default=False, doc="divide advantages by the standard deviation of their group"
    )
    entropy_coef: float = chz.field(
        default=0.0, doc="bonus for unlikely tokens, in reward a nat: keeps the model trying"
    )
    loss_fn: Literal["importance_sampling", "ppo", "cispo"] = chz.field(
        default="importance_sampling", doc="the service's loss"
    )
    num_substeps: int = chz.field(default=1, doc="optimizer steps that a batch is divided into")
    max_steps: int = chz.field(default=60, doc="steps to train")
    num_groups_to_log: int = chz.field(default=4, doc="groups in each transcript; 0: none")
    log_path: str = chz.field(default="runs/rl", doc="directory for metrics and checkpoints")

    @chz.validate
    def _check(self) -> None:
        settings.check_at_least(self, groups_per_batch=1, group_size=2, max_tokens=1)
        settings.check_at_least(self, num_substeps=1, num_groups_to_log=0)
        settings.check_positive(self, "temperature")
        if not (math.isfinite(self.entropy_coef) and self.entropy_coef >= 0):
            raise ValueError(f"entropy_coef must not be negative, not {self.entropy_coef}")


def main(config: Config) -> None:
    """Train, or go on training. Exit code 143 after SIGTERM and 130 after SIGINT."""
    run("rl", GroupTrainer, config)


def advantages(rewards: Sequence[float], normalize_std: bool) -> list[float]:
    """What each answer earned above the group's mean.

    With `normalize_std` divided by the group's standard deviation, as GRPO was first published
    (Shao et al. 2024, arXiv:2402.03300, section 4.1.2); without, as Liu et al. 2025
    (arXiv:2503.20783) have it, who show that dividing favours the easiest and hardest questions.
    """
    mean = sum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not normalize_std:
        return centred
    deviation = (sum(c * c for c in centred) / len(centred)) ** 0.5
    return [c / (deviation + 1e-6) for c in centred]


def entropy_bonus(logprobs: Sequence[float], mean: float, coef: float) -> list[float]:
    """What sampled tokens gain for being unlikely, against the batch's mean logprob.

    Added to their advantages it makes the gradient that of reward + coef * entropy, the entropy
    being the mean over tokens of -log q under their own distribution (Williams and Peng 1991,
    "Function optimization using connectionist reinforcement learning algorithms").
    """
    return [coef * (mean - logprob) for logprob in logprobs]


def to_datum(prompt: list[int], rollout: Rollout, advantages: Sequence[float]) -> "tinker.Datum":
    """What Tinker trains on: each sampled token with its logprob and its advantage.

    Tokens of the prompt have advantage 0, and so no part in the loss.
    """
    import numpy as np
    import tinker

    tokens = prompt + rollout.tokens
    before = len(prompt) - 1
    logprobs = np.array([0.0] * before + rollout.logprobs, np.float32)
    weights = np.array([0.0] * before + list(advantages), np.float32)
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData.from_numpy(np.array(tokens[1:], np.int64)),
            "logprobs": tinker.TensorData.from_numpy(logprobs),
            "advantages": tinker.TensorData.from_numpy(weights),
        },
    )


def kl_sample_train(sampled: Sequence[float], trained: Sequence[float]) -> dict[str, float]:
    """How far the trainer is from the sampler, in nats a token, from the logprobs that both gave
    the sampled tokens.

    v1 is the mean of log q - log p, the plain estimate of KL(q || p), q being the sampler. v2 is
    half the mean of its square, biased but never negative (J. Schulman 2020, "Approximating KL
    divergence", k1 and k2).
    """
    differences = [q - p for q, p in zip(sampled, trained, strict=True)]
    count = len(differences)
    return {
        "optim/kl_sample_train_v1": sum(differences) / count,
        "optim/kl_sample_train_v2": sum(d * d for d in differences) / count / 2,
    }


def split_evenly(items: list[Any], parts: int) -> list[list[Any]]:
    """Consecutive parts whose sizes differ by at most one; fewer where items are fewer."""
    parts = min(parts, len(items))
    return [items[len(items) * n // parts : len(items) * (n + 1) // parts] for n in range(parts)]


def sampling_seed(seed: int, step: int, question: int) -> int:
    """The seed for the answers to the nth question of a step."""
    return random.Random(f"sample/{seed}/{step}/{question}").getrandbits(31)


class Update(NamedTuple):
    """The requests that train on a batch, under way: two for each substep."""

    rollouts: list[Rollout]
    passes: list["tinker.APIFuture[tinker.ForwardBackwardOutput]"]
    steps: list["tinker.APIFuture[Any]"]

    def metrics(self, wait: Callable[[Any], Any]) -> dict[str, float]:
        """Wait, and say how far the trainer was from the sampler and what the optimizer said.

        Later substeps begin with what the ones before have made of the model.
        """
        outputs = [output for request in self.passes for output in wait(request).loss_fn_outputs]
        sampled: list[float] = []
        trained: list[float] = []
        for rollout, output in zip(self.rollouts, outputs, strict=True):
            sampled += rollout.logprobs
            trained += output["logprobs"].to_numpy().tolist()[-len(rollout.tokens) :]
        found: dict[str, float] = {"num_sequences": len(outputs), "num_tokens": len(sampled)}
        if sampled:
            found |= kl_sample_train(sampled, trained)
        for request in self.steps:  # the last one's stay
            found |= wait(request).metrics or {}
        return found


class GroupTrainer(Trainer):
    """The loop: sample, reward, train, and so on with what that made of the model."""

    config: Config
    shown: ClassVar = ("env/all/reward/total", "env/all/correct", "test/reward", "test/accuracy")

    def prepare(self, data: tasks.Split) -> None:
        """Prompts of all conversations, the last message of each being the answer."""
        self.questions = self.problems(data.train)
        self.held_out = self.problems(data.test)
        config = self.config
        self.tag = Path(config.data).stem if config.data is not None else config.task

    def problems(self, conversations: list[tasks.Conversation]) -> list[Problem]:
        """Those that are not longer than `max_length`, with the right answer."""
        found: list[Problem] = []
        for conversation in conversations:
            example = chat.render(self.tokenizer, conversation)[-1]
            prompt, answer = example.tokens[: example.answer], example.tokens[example.answer :]
            if len(prompt) + self.config.max_tokens > self.config.max_length:
                continue
            text = self.text(answer)
            found.append(Problem(conversation[:-1], prompt, text, answer[-1], len(answer)))
        if not found:
            raise service.RecipeError(
                f"max_length={self.config.max_length} leaves no question with max_tokens="
                f"{self.config.max_tokens} to answer it"
            )
        if left_out := len(conversations) - len(found):
            print(f"{left_out} of {len(conversations)} questions left out: max_length")
        return found

    def text(self, tokens: list[int]) -> str:
        """What an answer says, its end left out."""
        return self.tokenizer.decode(tokens, skip_special_tokens=True).strip()

    def train_steps(self) -> int:
        """A step samples from what the one before has made; nothing can be submitted earlier."""
        step = self.run.start_step
        self.sampler = self.training.save_weights_and_get_sampling_client()
        while step < self.config.max_steps and self.stop.signum is None:
            if self.save_due(step):
                self.record(step, self.save(step))
            self.train_step(step)
            step += 1
        return step

    def train_step(self, step: int) -> None:
        """One batch: its samples, the optimizer's steps, a line of metrics."""
        config = self.config
        groups_due = self.begin_sampling(step)
        scores = self.begin_evaluation(step) if self.evaluation_due(step) else None
        groups = groups_due()
        # The bonus is for every answer: a group left out would settle on one, and stay left out.
        kept = [group for group in groups if config.entropy_coef or not group.constant]
        update = self.update(step, kept)
        self.sampler = self.training.save_weights_and_get_sampling_client()
        self.write_rollouts(step, "train", groups, f"RL Iteration {step}")
        logprobs = [p for group in groups for r in group.rollouts for p in r.logprobs]
        metrics: dict[str, Any] = {
            "progress/batch": step,
            "progress/done_frac": (step + 1) / config.max_steps,
            "optim/lr": settings.learning_rate_at(config, step),
            "optim/entropy": -sum(logprobs) / len(logprobs),
            **rollouts.metrics_of(groups),
            "num_groups": len(groups),
            "num_groups_dropped": len(groups) - len(kept),
            **update.metrics(self.wait),
        }
        if scores:
            metrics |= scores()
        self.log(step, metrics)

    def begin_sampling(self, step: int) -> Callable[[], list[Group]]:
        """Ask a step's questions; the function returned waits for the answers."""
        config, sampler = self.config, self.wait(self.sampler)
        indices = tasks.batch_indices(
            step, config.groups_per_batch, len(self.questions), config.seed
        )
        problems = [self.questions[index] for index in indices]
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
        return lambda: [self.group(*pair) for pair in zip(problems, requests, strict=True)]

    def ask(self, sampler: Any, problem: Problem, count: int, **params: Any) -> Any:
        """Submit a request for `count` answers."""
        import tinker

        prompt = tinker.ModelInput.from_ints(problem.prompt)
        return sampler.sample(prompt, count, tinker.SamplingParams(stop=[problem.end], **params))

    def group(self, problem: Problem, request: Any) -> Group:
        """Wait for the answers to a question and reward them."""
        dense = self.config.reward == "dense"
        found: list[Rollout] = []
        for sequence in self.wait(request).sequences:
            text, ended = self.text(sequence.tokens), sequence.stop_reason == "stop"
            correct = rollouts.exact(problem.answer, text, ended)
            reward = rollouts.share_right(problem.answer, text, ended) if dense else float(correct)
            found.append(
                Rollout(
                    list(sequence.tokens), list(sequence.logprobs), text, ended, reward, correct
                )
            )
        return Group(problem, found)

    def update(self, step: int, groups: list[Group]) -> Update:
        """Submit the optimizer's steps on a batch."""
        config = self.config
        logprobs = [p for group in groups for rollout in group.rollouts for p in rollout.logprobs]
        mean = sum(logprobs) / max(len(logprobs), 1)
        pairs: list[tuple[Rollout, tinker.Datum]] = []
        for group in groups:
            earned = advantages(group.rewards, config.normalize_std)
            for rollout, advantage in zip(group.rollouts, earned, strict=True):
                bonus = entropy_bonus(rollout.logprobs, mean, config.entropy_coef)
                by_token = [advantage + extra for extra in bonus]
                pairs.append((rollout, to_datum(group.problem.prompt, rollout, by_token)))
        passes: list[Any] = []
        steps: list[Any] = []
        for part in split_evenly(pairs, config.num_substeps):
            data = [datum for _, datum in part]
            passes.append(self.training.forward_backward(data, config.loss_fn))
            steps.append(self.training.optim_step(self.adam(step)))
        return Update([rollout for rollout, _ in pairs], passes, steps)

    def begin_evaluation(self, step: int) -> Callable[[], dict[str, float]]:
        """The held-out questions, answered greedily: `test/reward` and `test/accuracy`."""
        sampler = self.wait(self.sampler)
        requests = [
            # One token more than the right answer: what is longer is wrong already.
            self.ask(sampler, problem, 1, max_tokens=problem.size, temperature=0.0)
            for problem in self.held_out
        ]

        def scores() -> dict[str, float]:
            pairs = zip(self.held_out, requests, strict=True)
            groups = [self.group(problem, request) for problem, request in pairs]
            self.write_rollouts(step, "eval_test", groups, f"Running evaluation test {step}")
            found = rollouts.metrics_of(groups)
            return {
                "test/reward": found["env/all/reward/total"],
                "test/accuracy": found["env/all/correct"],
                **{f"test/{key}": value for key, value in found.items()},
            }

        return scores

    def write_rollouts(self, step: int, name: str, groups: list[Group], title: str) -> None:
        """The summaries of all, and a transcript of the first `num_groups_to_log`."""
        split = "train" if name == "train" else name.replace("_", "/", 1)
        summaries = rollouts.summaries(groups, split, step, self.tag)
        self.run.write_iteration(step, f"{name}_rollout_summaries.jsonl", summaries)
        if logged := groups[: self.config.num_groups_to_log]:
            text = rollouts.transcript(title, logged, datetime.now(UTC))
            self.run.write_iteration(step, f"{name}_logtree.json", text)


if __name__ == "__main__":
    main(service.parse_arguments(Config))
    service.leave()
