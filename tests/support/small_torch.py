"""The part of torch that the SDK needs to differentiate a custom loss; torch itself is 1 GB.

The loss supplies its own slopes: `total(value, [(leaf, slope), ...])`.
"""

import numpy as np


class Leaf(np.ndarray):
    """The part of a torch tensor that the SDK needs in a custom loss's argument."""

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
    """The part of torch that the SDK calls for a custom loss."""

    @staticmethod
    def tensor(values):
        return np.asarray(values, np.float32).view(Leaf)


class Total(Leaf):
    """A loss: a number that writes its slopes to the leaves in `backward`."""

    def backward(self):
        for leaf, slope in self.slopes:
            leaf.grad = np.asarray(slope, np.float32)


def total(value, slopes):
    out = np.asarray(value).view(Total)
    out.slopes = slopes
    return out
