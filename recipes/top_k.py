"""Computes the reverse KL divergence from a teacher over the student's k likeliest tokens at each
position, with all other tokens joined as "the rest"."""

# KL = sum over k of p log(p / q) + p_rest log(p_rest / q_rest)
#
# That is at most the whole divergence, and equal to it if k is the vocabulary size. Its derivative
# with respect to the logprob of a token is
#
# p (log(p / q) - log(p_rest / q_rest))
#
# where the rest has the remaining probability. `cross_entropy` with k targets per position and
# minus these derivatives as weights therefore has the divergence's exact gradient at the sampled
# positions. The sampled token alone gives this gradient only on average. It costs one more pass of
# the teacher and none of the student: the service returns the student's k likeliest tokens when it
# samples (`topk_sample_logprobs`), and the teacher's logprobs of these tokens
# (`target_prompt_logprobs`).

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import rollouts
from .rollouts import Rollout
from .service import RecipeError

if TYPE_CHECKING:
    import numpy as np
    import tinker

_FLOOR = 1e-6
"""The minimum probability of "the rest". A smaller probability cannot be computed precisely in
float32, as 1 minus the probabilities of the likeliest tokens."""


class Slopes(NamedTuple):
    """The KL divergence at each position, in nats. `by_value` has its derivatives with respect to
    the student's logprobs of its k likeliest tokens (an array of positions x k)."""

    by_value: "np.ndarray"
    divergence: "np.ndarray"


def slopes(student: Any, teachers: Sequence[tuple[float, Any]]) -> Slopes:
    """Compute the divergence and its derivatives. `student` has the student's logprobs of its k
    likeliest tokens. `teachers` has each teacher's weight and its logprobs of the same tokens."""
    import numpy as np

    student_logprobs = np.asarray(student, np.float64)
    p, rest = np.exp(student_logprobs), _log_rest(student_logprobs)
    by_value, divergence = np.zeros_like(student_logprobs), np.zeros(len(student_logprobs))
    for weight, taught in teachers:
        teacher_logprobs = np.asarray(taught, np.float64)
        gap, rest_gap = student_logprobs - teacher_logprobs, rest - _log_rest(teacher_logprobs)
        by_value += weight * p * (gap - rest_gap[:, None])
        divergence += weight * ((p * gap).sum(-1) + np.exp(rest) * rest_gap)
    return Slopes(by_value, divergence)


def _log_rest(logprobs: "np.ndarray") -> "np.ndarray":
    import numpy as np

    return np.log(np.maximum(1.0 - np.exp(logprobs).sum(-1), _FLOOR))


def begin(
    sampler: "tinker.SamplingClient", prompt: list[int], rollout: Rollout
) -> "tinker.APIFuture[Any]":
    """Request a teacher's logprobs of a rollout's sampled and likeliest tokens; see `taught`."""
    import numpy as np
    import tinker

    tokens, places = rollouts.whole(prompt, rollout)
    values = _values(rollout)
    ids = np.full((len(tokens) - 1, values.shape[1]), -1, np.int64)
    ids[[place - 1 for place in places]] = values
    return sampler.sample(
        tinker.ModelInput.from_ints(tokens),
        1,
        tinker.SamplingParams(max_tokens=1),
        include_prompt_logprobs=True,
        target_prompt_logprobs=tinker.TensorData.from_numpy(ids),
    )


def taught(response: Any, prompt: list[int], rollout: Rollout) -> tuple[list[float], "np.ndarray"]:
    """Return the teacher's logprobs of the sampled tokens, and of the likeliest tokens at each
    position."""
    _, places = rollouts.whole(prompt, rollout)
    sampled = [float(response.prompt_logprobs[place]) for place in places]
    values = response.target_prompt_logprobs.to_numpy()
    return sampled, values[[place - 1 for place in places]]


def _values(rollout: Rollout) -> "np.ndarray":
    """Return the likeliest tokens at each position (positions x k). Raises RecipeError if the
    rollout has none."""
    import numpy as np

    if len(rollout.likeliest) != len(rollout.tokens) or not all(rollout.likeliest):
        raise RecipeError(
            "kl_top_k: this service does not return the likeliest tokens of each position"
        )
    return np.array([[value for value, _ in row] for row in rollout.likeliest], np.int64)


def to_datum(prompt: list[int], rollout: Rollout, weights: "np.ndarray") -> "tinker.Datum":
    """Return a datum for `cross_entropy`. At each sampled position, the first target is the sampled
    token. Its weight is 0, because only its logprob is needed. The other targets are the likeliest
    tokens with their weights."""
    import numpy as np
    import tinker

    tokens, places = rollouts.whole(prompt, rollout)
    values = _values(rollout)
    targets = np.zeros((len(tokens) - 1, 1 + values.shape[1]), np.int64)
    factors = np.zeros(targets.shape, np.float32)
    targets[:, 0] = tokens[1:]
    rows = [place - 1 for place in places]
    targets[rows, 1:] = values
    factors[rows, 1:] = weights
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData.from_numpy(targets),
            "weights": tinker.TensorData.from_numpy(factors),
        },
    )
