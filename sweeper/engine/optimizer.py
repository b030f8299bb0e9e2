"""AdamW (Loshchilov and Hutter 2019) with the parameters of the SDK's `AdamParams`."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from sweeper.common.json_values import is_number
from sweeper.engine.array_types import Arrays, Floats
from sweeper.engine.errors import RequestError


class AdamParams(NamedTuple):
    """The parameters of one step, with the SDK's defaults. A clip norm of 0 means no clipping."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class Moments(NamedTuple):
    """Running averages of the gradient and of its square, and the number of steps."""

    first: Arrays
    second: Arrays
    steps: int


def parse(values: Mapping[str, object]) -> AdamParams:
    """Convert a client's `adam_params`. Raises RequestError for an invalid value."""
    if unknown := sorted(set(values) - set(AdamParams._fields)):
        raise RequestError(f"adam_params: unknown {', '.join(unknown)}")
    numbers: dict[str, float] = {}
    for name, value in values.items():
        # The SDK sends null for NaN and infinities, which JSON lacks.
        if not is_number(value) or not math.isfinite(value) or value < 0:
            shown = "NaN or infinite" if value is None else value
            raise RequestError(f"adam_params: {name} is {shown}; it must be finite and not below 0")
        numbers[name] = float(value)
    params = AdamParams(**numbers)
    if params.beta1 >= 1 or params.beta2 >= 1:
        raise RequestError("adam_params: beta1 and beta2 must be below 1")
    return params


def _norm(gradients: Arrays) -> float:
    # Add in a fixed order, so that the sum is the same in every run.
    total = 0.0
    for name in sorted(gradients):
        flat = gradients[name].ravel()
        total += float(np.dot(flat, flat))
    return math.sqrt(total) if total >= 0 else math.nan


def _moved(weight: Floats, first: Floats, second: Floats, params: AdamParams, steps: int) -> Floats:
    rate = params.learning_rate / (1 - params.beta1**steps)
    root = np.sqrt(second / second.dtype.type(1 - params.beta2**steps))
    root += second.dtype.type(params.eps)
    # If eps and the gradient are both 0, the step is then 0 instead of 0/0.
    np.maximum(root, np.finfo(second.dtype).tiny, out=root)
    moved = weight * weight.dtype.type(1 - params.learning_rate * params.weight_decay)
    moved -= first / root * weight.dtype.type(rate)
    return moved


def step(
    weights: Arrays, gradients: Arrays, moments: Moments, params: AdamParams
) -> tuple[Arrays, Moments, float]:
    """Update every weight that has a gradient. Return new weights and moments, and the L2 norm of
    all gradients before clipping. The old arrays are unchanged.

    Weight decay is decoupled: w <- w (1 - rate * decay) - rate * m / (sqrt(v) + eps).
    """
    norm = _norm(gradients)
    if not gradients:
        return weights, moments, norm
    clip = params.grad_clip_norm
    factor = clip / norm if 0 < clip < norm else 1.0
    steps = moments.steps + 1
    out, firsts, seconds = dict(weights), dict(moments.first), dict(moments.second)
    for name, gradient in gradients.items():
        scalar = gradient.dtype.type
        g = gradient * scalar(factor) if factor != 1.0 else gradient
        first, second = g * scalar(1 - params.beta1), g * g
        second *= scalar(1 - params.beta2)
        if name in firsts:
            first += firsts[name] * scalar(params.beta1)
            second += seconds[name] * scalar(params.beta2)
        firsts[name], seconds[name] = first, second
        out[name] = _moved(weights[name], first, second, params, steps)
    return out, Moments(firsts, seconds, steps), norm
