"""How long what has failed is left alone."""

import pytest

from sweeper.backends.aws_batch.client import Refused
from sweeper.backends.backoff import Patience
from sweeper.errors import Unreachable


def test_what_has_failed_is_left_alone_for_longer_each_time() -> None:
    now = 0.0
    patience = Patience(30, 100, lambda: now)
    for seconds in (30, 60, 100, 100):
        patience.check()
        patience.failed(Unreachable("no room"))
        now += seconds - 1
        with pytest.raises(Unreachable, match="no room"):
            patience.check()
        now += 1
    patience.succeeded()
    patience.failed(Unreachable("no room"))
    now += 30
    patience.check()


def test_what_fails_together_has_failed_once() -> None:
    now = 0.0
    patience = Patience(30, 100, lambda: now)
    for _ in range(8):
        patience.failed(Unreachable("no answer"))
    now += 30
    patience.check()
    patience.failed(Unreachable("no answer"))
    now += 59
    with pytest.raises(Unreachable):
        patience.check()
    now += 1
    patience.check()


def test_what_is_told_meanwhile_is_what_had_failed() -> None:
    patience = Patience(30, 100, lambda: 0.0)
    patience.failed(Refused("you may not", "AccessDenied", for_good=True))
    for _ in range(3):
        with pytest.raises(Refused, match="you may not") as caught:
            patience.check()
        assert caught.value.for_good
        assert len(caught.traceback) == 2  # no calls of those that were told before
