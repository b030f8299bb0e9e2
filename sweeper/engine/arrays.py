"""The names the engine's modules have for arrays."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Arrays"]

Array: TypeAlias = npt.NDArray[np.floating[Any]] | npt.NDArray[Any]
"""Any array. Its shape is in the docstring of what returns it: B sequences, T positions, N = B*T
rows, d hidden, H heads, KV key/value heads, h the size of a head, f the MLP's width, V tokens."""

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
"""Named arrays: weights, adapters, gradients, moments."""
