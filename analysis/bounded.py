"""Intervals of shares, which end where shares do. Pure."""

import math

from sweeper.analysis.inference import wilson

__all__ = ["counted", "on_logits"]


def on_logits(mean: float, reach: float) -> tuple[float, float]:
    """Bounds of a share strictly between 0 and 1 whose symmetric interval reaches `reach` to either
    side: as long on the logit scale, by the delta method, and so within 0 and 1 (Agresti,
    *Categorical Data Analysis*, 3.1.6)."""
    logit, width = math.log(mean / (1 - mean)), reach / (mean * (1 - mean))
    return _share(logit - width), _share(logit + width)


def _share(logit: float) -> float:
    if logit < -700:
        return 0.0
    return 1 / (1 + math.exp(-logit))


def counted(share: float, items: int) -> tuple[float, float]:
    """Bounds of a share of so many items of which nothing else tells the noise: Wilson's, of the
    nearest count."""
    return wilson(min(max(round(share * items), 0), items), items)
