"""How long what has failed is left alone."""

import pytest

from sweeper.backends.aws_batch.client import Refused
from sweeper.backends.backoff import Backoff
from sweeper.errors import Unreachable


def test_what_has_failed_is_left_alone_for_longer_each_time() -> None:
    now = 0.0
    backoff = Backoff(30, 100, lambda: now)
    for seconds in (30, 60, 100, 100):
        backoff.check()
        backoff.failed(Unreachable("no room"))
        now += seconds - 1
        with pytest.raises(Unreachable, match="no room"):
            backoff.check()
        now += 1
    backoff.succeeded()
    backoff.failed(Unreachable("no room"))
    now += 30
    backoff.check()


def test_what_fails_together_has_failed_once() -> None:
    now = 0.0
    backoff = Backoff(30, 100, lambda: now)
    for _ in range(8):
        backoff.failed(Unreachable("no answer"))
    now += 30
    backoff.check()
    backoff.failed(Unreachable("no answer"))
    now += 59
    with pytest.raises(Unreachable):
        backoff.check()
    now += 1
    backoff.check()


def test_what_is_told_meanwhile_is_what_had_failed() -> None:
    backoff = Backoff(30, 100, lambda: 0.0)
    backoff.failed(Refused("you may not", "AccessDenied", for_good=True))
    for _ in range(3):
        with pytest.raises(Refused, match="you may not") as caught:
            backoff.check()
        assert caught.value.for_good
        assert len(caught.traceback) == 2  # no calls of those that were told before
