"""The names the engine's modules have for arrays.

An array's shape is in the docstring of what returns it: B sequences, T positions, N = B*T rows, d
hidden, H heads, KV key/value heads, h the size of a head, f the MLP's width, V tokens.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Arrays", "Floats", "Ints", "Numbers"]

Floats: TypeAlias = npt.NDArray[np.floating]
"""Numbers: weights, activations, logprobs, gradients; float32, or float64 in tests."""

Ints: TypeAlias = npt.NDArray[np.integer]
"""Token ids, and positions in other arrays."""

Numbers: TypeAlias = npt.NDArray[np.integer | np.floating]
"""Either: what a client sends with a sequence."""

Arrays: TypeAlias = dict[str, Floats]
"""Named arrays: weights, adapters, gradients, moments."""
