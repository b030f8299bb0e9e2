"""Computes a policy-gradient step: token advantages, training data, and the divergence of the
trainer from the sampler. Functions are pure; an `Update` waits for the service."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from . import rollouts, samplers
from .rollouts import Rollout

if TYPE_CHECKING:
    import tinker


def advantages(rewards: Sequence[float], normalize_std: bool) -> list[float]:
    """Return each answer's reward minus the group's mean.

    With `normalize_std`, the difference is divided by the group's standard deviation, as in the
    first publication of GRPO (Shao et al. 2024, arXiv:2402.03300, section 4.1.2). Recipes do not
    divide by default: Liu et al. 2025 (arXiv:2503.20783) show that the division favours the
    easiest and hardest questions.
    """
    mean = sum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not normalize_std:
        return centred
    deviation = (sum(c * c for c in centred) / len(centred)) ** 0.5
    return [c / (deviation + 1e-6) for c in centred]


def entropy_bonus(logprobs: Sequence[float], mean: float, coef: float) -> list[float]:
    """Return a bonus for each sampled token. The bonus is larger for tokens that are less likely,
    relative to the batch's mean logprob. With this bonus added to the advantages, the gradient is
    that of reward + coef * entropy. The entropy is the mean over tokens of -log q, where q is the
    probability with which a token was sampled (Williams and Peng 1991, "Function optimization using
    connectionist reinforcement learning algorithms")."""
    return [coef * (mean - logprob) for logprob in logprobs]


def kl_penalty(
    sampled: Sequence[Sequence[float]], reference: Sequence[Sequence[float]], coef: float
) -> tuple[list[list[float]], dict[str, float]]:
    """Return a term for the advantage of each token of each answer, and the metric
    `kl_policy_base`. The metric is the batch's mean log ratio to the reference, an estimate of the
    KL divergence in nats per token. The term is `coef` times (this mean - the token's log ratio).
    """
    apart = [
        [policy - other for policy, other in zip(*both, strict=True)]
        for both in zip(sampled, reference, strict=True)
    ]
    mean = sum(map(sum, apart)) / max(sum(map(len, apart)), 1)
    return [[coef * (mean - gap) for gap in gaps] for gaps in apart], {"kl_policy_base": mean}


def to_datum(prompt: list[int], rollout: Rollout, advantages: Sequence[float]) -> "tinker.Datum":
    """Return the training datum: each sampled token with its logprob and its advantage.

    Tokens of the prompt, and tokens that an environment wrote between turns, have advantage 0, so
    they do not contribute to the loss.
    """
    import numpy as np
    import tinker

    tokens, places = rollouts.whole(prompt, rollout)
    logprobs, weights = (np.zeros(len(tokens), np.float32) for _ in range(2))
    logprobs[places], weights[places] = rollout.logprobs, advantages
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData.from_numpy(np.array(tokens[1:], np.int64)),
            "logprobs": tinker.TensorData.from_numpy(logprobs[1:]),
            "advantages": tinker.TensorData.from_numpy(weights[1:]),
        },
    )


def kl_sample_train(sampled: Sequence[float], trained: Sequence[float]) -> dict[str, float]:
    """Return the divergence of the trainer from the sampler in nats per token, from the logprobs
    that both gave the sampled tokens.

    v1 is the mean of log q - log p, the plain estimate of KL(q || p), where q is the sampler. v2
    is half the mean of (log q - log p)^2, biased but never negative (J. Schulman 2020,
    "Approximating KL divergence", k1 and k2).
    """
    differences = [q - p for q, p in zip(sampled, trained, strict=True)]
    count = len(differences)
    return {
        "optim/kl_sample_train_v1": sum(differences) / count,
        "optim/kl_sample_train_v2": sum(d * d for d in differences) / count / 2,
    }


def discounted(values: Sequence[float], factor: float) -> list[float]:
    """Return the discounted sums: each value plus `factor` times the next discounted sum."""
    returns: list[float] = []
    after = 0.0
    for value in reversed(values):
        after = value + factor * after
        returns.append(after)
    return returns[::-1]


def split_evenly(items: list[Any], parts: int) -> list[list[Any]]:
    """Split items into consecutive parts whose sizes differ by at most one. If there are fewer
    items than `parts`, each item is a part."""
    parts = min(parts, len(items))
    return [items[len(items) * n // parts : len(items) * (n + 1) // parts] for n in range(parts)]


def sampling_seed(seed: int, step: int, question: int) -> int:
    """Return the seed for sampling the answers to a question. `question` is the position of the
    question in the batch of the step."""
    return samplers.seed_of(f"sample/{seed}/{step}/{question}")


class Update(NamedTuple):
    """The pending requests that train on a batch: a gradient pass and an optimizer's step for each
    substep."""

    rollouts: list[Rollout]
    passes: list["tinker.APIFuture[tinker.ForwardBackwardOutput]"]
    steps: list["tinker.APIFuture[tinker.OptimStepResponse]"]

    def metrics(
        self, wait: Callable[[Any], Any], timed: Callable[[str], AbstractContextManager[None]]
    ) -> dict[str, float]:
        """Wait for the requests. Return the numbers of sequences and tokens, the KL divergence
        between trainer and sampler, and the optimizer's metrics. `timed` measures the waiting
        times. With several substeps, the divergence is partly due to earlier substeps."""
        with timed("forward_backward"):
            passes = [wait(request) for request in self.passes]
        outputs = [output for result in passes for output in result.loss_fn_outputs]
        sampled: list[float] = []
        trained: list[float] = []
        for rollout, output in zip(self.rollouts, outputs, strict=True):
            sampled += rollout.logprobs
            new_logprobs = output["logprobs"].to_numpy()
            # If there are several tokens for each position, the sampled token comes first.
            every = (new_logprobs[:, 0] if new_logprobs.ndim > 1 else new_logprobs).tolist()
            # The service returns logprobs of all tokens but the first. Count places from the end,
            # so that the length of the prompt does not matter.
            size, places = rollouts.whole_after(rollout)
            trained += [every[place - size] for place in places]
        metrics: dict[str, float] = {"num_sequences": len(outputs), "num_tokens": len(sampled)}
        if sampled:
            metrics |= kl_sample_train(sampled, trained)
        with timed("optim_step"):
            for request in self.steps:  # values of later requests replace those of earlier ones
                metrics |= wait(request).metrics or {}
        return metrics
