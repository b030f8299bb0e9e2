"""Losses as functions of logprobs: `(logprobs, inputs, config) -> (loss, dloss/dlogprob)`. Arrays
are M positions x K target tokens. Losses are summed over tokens, as on Tinker's service."""

# Source of the formulas and their defaults: the Tinker documentation, "Losses" and its tutorial
# 202. `dro` has no default there, so it uses the `beta` of the example.
#
# r = p / q                      q: the sampler's probability, from `logprobs`
# cross_entropy                  -w log p
# importance_sampling            -w r A
# ppo                            -w min(r A, clip(r) A)
# cispo                          -w [clip(r)] A log p, with the bracket held constant
# dro                            -w (A log p - beta/2 (log r)^2)
# stable_reinforce               -w (A log p - kl_coeff/2 (log r)^2), with q recorded by the sampler
#
# The formula of the service's `stable_reinforce` is not published. The engine uses another one with
# the same inputs and configuration. It stays bounded off-policy, since no ratio multiplies the
# advantage. Its default is the value of the SDK's example.

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from sweeper.engine.array_types import Arrays, Floats
from sweeper.engine.errors import RequestError

LossConfig = Mapping[str, float | str]
"""The client's `loss_fn_config`."""

RECORDED = "recorded_logprobs"
"""The name of an input that does not come from the client: the logprobs that the sampler
recorded."""


class Loss(NamedTuple):
    """A loss function, the inputs that it requires, and its default configuration."""

    compute: Callable[[Floats, Arrays, LossConfig], tuple[Floats, Floats]]
    needs: tuple[str, ...] = ()
    config: Mapping[str, float] = {}


def _cross_entropy(logprobs: Floats, inputs: Arrays, _config: LossConfig) -> tuple[Floats, Floats]:
    """Return -w log p and its gradient. A weight w may be negative, because the SDK derives weights
    from the gradient of a custom loss."""
    weights = inputs["weights"]
    return -logprobs * weights, -weights


def _importance_sampling(
    logprobs: Floats, inputs: Arrays, _config: LossConfig
) -> tuple[Floats, Floats]:
    ratio = np.exp(logprobs - inputs["logprobs"])
    loss = -ratio * inputs["advantages"] * inputs["weights"]
    return loss, loss


def _clipped(ratio: Floats, config: LossConfig, defaults: Mapping[str, float]) -> Floats:
    low, high = (_number(config, key, defaults) for key in _THRESHOLDS)
    return np.clip(ratio, low, high)


def _number(config: LossConfig, key: str, defaults: Mapping[str, float]) -> float:
    return float(config.get(key, defaults[key]))


def _ppo(logprobs: Floats, inputs: Arrays, config: LossConfig) -> tuple[Floats, Floats]:
    advantages, weights = inputs["advantages"], inputs["weights"]
    ratio = np.exp(logprobs - inputs["logprobs"])
    plain, clipped = ratio * advantages, _clipped(ratio, config, _PPO) * advantages
    slope = np.where(plain <= clipped, plain, 0.0)
    return -np.minimum(plain, clipped) * weights, -slope * weights


def _cispo(logprobs: Floats, inputs: Arrays, config: LossConfig) -> tuple[Floats, Floats]:
    ratio = np.exp(logprobs - inputs["logprobs"])
    slope = -_clipped(ratio, config, _CISPO) * inputs["advantages"] * inputs["weights"]
    return slope * logprobs, slope


def _dro(logprobs: Floats, inputs: Arrays, config: LossConfig) -> tuple[Floats, Floats]:
    apart = logprobs - inputs["logprobs"]
    return _penalised(logprobs, inputs, apart, _number(config, "beta", _DRO))


def _stable(logprobs: Floats, inputs: Arrays, config: LossConfig) -> tuple[Floats, Floats]:
    apart = logprobs - inputs[RECORDED]
    return _penalised(logprobs, inputs, apart, _number(config, "kl_coeff", _STABLE))


def _penalised(
    logprobs: Floats, inputs: Arrays, apart: Floats, strength: float
) -> tuple[Floats, Floats]:
    advantages, weights = inputs["advantages"], inputs["weights"]
    loss = -(logprobs * advantages - 0.5 * strength * apart**2)
    return loss * weights, (strength * apart - advantages) * weights


_THRESHOLDS: tuple[str, str] = ("clip_low_threshold", "clip_high_threshold")
_PPO: dict[str, float] = dict(zip(_THRESHOLDS, (0.8, 1.2), strict=True))
_CISPO: dict[str, float] = dict(zip(_THRESHOLDS, (0.0, 4.0), strict=True))
_DRO = {"beta": 0.05}
_STABLE = {"kl_coeff": 0.01}
_NEEDS = ("logprobs", "advantages")

LOSSES: dict[str, Loss] = {
    "cross_entropy": Loss(_cross_entropy),
    "importance_sampling": Loss(_importance_sampling, _NEEDS),
    "ppo": Loss(_ppo, _NEEDS, _PPO),
    "cispo": Loss(_cispo, _NEEDS, _CISPO),
    "dro": Loss(_dro, _NEEDS, _DRO),
    "stable_reinforce": Loss(_stable, ("advantages", RECORDED), _STABLE),
}


def find(name: str, config: LossConfig) -> Loss:
    """Return the loss `name`. Raises RequestError if there is no such loss, or if `config` is
    invalid."""
    loss = LOSSES.get(name)
    if loss is None:
        raise RequestError(f"loss_fn {name!r} is not supported here; use {', '.join(LOSSES)}")
    if unknown := sorted(set(config) - set(loss.config)):
        raise RequestError(
            f"loss_fn {name!r} does not use these keys of loss_fn_config: {', '.join(unknown)}"
        )
    for key, value in config.items():
        if isinstance(value, str) or not math.isfinite(value) or value < 0:
            raise RequestError(f"loss_fn {name!r}: {key} is {value!r}; it must be a number >= 0")
    low, high = ({**loss.config, **config}.get(key, 0.0) for key in _THRESHOLDS)
    if float(low) > float(high):
        raise RequestError(
            f"loss_fn {name!r}: {_THRESHOLDS[0]} {low} is above {_THRESHOLDS[1]} {high}"
        )
    return loss
