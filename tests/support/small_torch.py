"""As much of torch as the SDK asks for to differentiate a custom loss; torch itself is 1 GB.

The loss says its slopes by itself: `total(value, [(leaf, slope), ...])`.
"""

import numpy as np


class Leaf(np.ndarray):
    """As much of a torch tensor as the SDK asks of a custom loss's argument."""

    grad = None

    def __array_finalize__(self, _source):
        self.grad = None

    def clone(self):
        return self.copy()

    def detach(self):
        return self

    def requires_grad_(self, _wanted):
        return self


class Torch:
    """What the SDK calls of torch for a custom loss; torch itself is 1 GB."""

    @staticmethod
    def tensor(values):
        return np.asarray(values, np.float32).view(Leaf)


class Total(Leaf):
    """A loss: a number that leaves its slopes at the leaves when told to go backward."""

    def backward(self):
        for leaf, slope in self.slopes:
            leaf.grad = np.asarray(slope, np.float32)


def total(value, slopes):
    out = np.asarray(value).view(Total)
    out.slopes = slopes
    return out
