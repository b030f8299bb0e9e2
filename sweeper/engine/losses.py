"""Losses as functions of logprobs: `(logprobs, inputs, config) -> (loss, dloss/dlogprob)`.

All arrays are M x K: M positions of a batch, K target tokens each (1 but for soft targets). The
service sums over tokens, so neither the loss nor its gradient is averaged here.
Source of the formulas: the Tinker documentation, "Losses".
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from sweeper.engine.arrays import Array, Arrays
from sweeper.engine.errors import RequestError

__all__ = ["LOSSES", "Loss", "LossConfig", "find"]

LossConfig = Mapping[str, float | str]
"""The client's `loss_fn_config`."""


class Loss(NamedTuple):
    """A loss, the inputs it cannot do without, and the configuration keys it knows."""

    compute: Callable[[Array, Arrays, LossConfig], tuple[Array, Array]]
    needs: tuple[str, ...] = ()
    config: tuple[str, ...] = ()


def _cross_entropy(logprobs: Array, inputs: Arrays, _config: LossConfig) -> tuple[Array, Array]:
    """-w log p; any weight counts, negative ones too (custom losses are linear in log p)."""
    weights = inputs["weights"]
    return -logprobs * weights, -weights


def _importance_sampling(
    logprobs: Array, inputs: Arrays, _config: LossConfig
) -> tuple[Array, Array]:
    """-(p / q) A, with q the probability the sampler gave; its gradient is the loss itself."""
    ratio = np.exp(logprobs - inputs["logprobs"])
    loss = -ratio * inputs["advantages"] * inputs["weights"]
    return loss, loss


LOSSES: dict[str, Loss] = {
    "cross_entropy": Loss(_cross_entropy),
    "importance_sampling": Loss(_importance_sampling, needs=("logprobs", "advantages")),
}


def find(name: str, config: LossConfig) -> Loss:
    """The loss of that name. RequestError if there is none or it has no such configuration."""
    loss = LOSSES.get(name)
    if loss is None:
        raise RequestError(f"loss_fn {name!r} is not supported here; use {', '.join(LOSSES)}")
    if unknown := sorted(set(config) - set(loss.config)):
        raise RequestError(f"loss_fn {name!r} takes no configuration {', '.join(unknown)}")
    return loss
