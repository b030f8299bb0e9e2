"""Type names for the engine's arrays. Docstrings give shapes: B sequences, T positions, L some
of these positions, N = B*T rows, M some of these rows, K target tokens per row, d hidden size, H
heads, KV key/value heads, G = H / KV, h head size, f MLP width, V tokens in the vocabulary."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.floating]
"""Weights, activations, logprobs and gradients: float32, or float64 in tests."""

Ints: TypeAlias = npt.NDArray[np.integer]
"""Token ids, and positions in other arrays."""

Numbers: TypeAlias = npt.NDArray[np.integer | np.floating]
"""Integers or floats: the values that a client sends with a sequence."""

Arrays: TypeAlias = dict[str, Floats]
"""Named arrays: weights, adapters, gradients, moments."""
