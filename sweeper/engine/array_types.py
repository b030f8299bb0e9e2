"""Type names for the engine's arrays.

An array's shape is given in the docstring of the function that returns it. B is sequences, T
positions, N = B*T rows, d hidden size, H heads, KV key/value heads, h the size of a head, f the
width of the MLP, V tokens.
"""

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
