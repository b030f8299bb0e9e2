"""How long a failed action is not tried again."""

import pytest

from sweeper.backends.aws_batch.client import Refused
from sweeper.common.backoff import Backoff, delay, delays, retried, spread
from sweeper.errors import Unreachable
from sweeper.testing import FakeClock


def test_backoff_grows_with_each_failure():
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


def test_failures_at_the_same_time_count_once():
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


def test_backoff_raises_the_last_error_meanwhile():
    backoff = Backoff(30, 100, lambda: 0.0)
    backoff.failed(Refused("you may not", "AccessDenied", for_good=True))
    for _ in range(3):
        with pytest.raises(Refused, match="you may not") as caught:
            backoff.check()
        assert caught.value.for_good
        assert len(caught.traceback) == 2  # no frames of earlier callers


class Failing:
    """An action that fails `times` times, and records when it was called."""

    def __init__(self, times: int) -> None:
        self.clock, self.left, self.calls = FakeClock(), times, list[float]()

    def __call__(self) -> str:
        self.calls.append(self.clock())
        if self.left:
            self.left -= 1
            raise OSError(f"{self.left} left")
        return "done"


def test_a_retry_waits_twice_as_long_each_time_and_gives_up_with_the_last_error():
    action, noted = Failing(3), list[tuple[str, float]]()

    def note(error: Exception, wait: float) -> None:
        noted.append((str(error), wait))

    waits = delays(1.0, most=3.0)
    assert retried(action, waits, lambda _: True, note=note, sleep=action.clock.sleep) == "done"
    assert action.calls == [0.0, 1.0, 3.0, 6.0]
    assert noted == [("2 left", 1.0), ("1 left", 2.0), ("0 left", 3.0)]
    action = Failing(9)
    with pytest.raises(OSError, match="6 left"):
        retried(action, delays(1.0, times=2), lambda _: True, sleep=action.clock.sleep)
    assert action.calls == [0.0, 1.0, 3.0]


def test_an_error_is_raised_at_once_or_asks_for_a_longer_wait():
    action = Failing(1)
    with pytest.raises(OSError, match="0 left"):
        retried(action, delays(1.0), lambda _: False, sleep=action.clock.sleep)
    assert action.calls == [0.0]
    action = Failing(2)
    retried(action, delays(1.0), lambda _: True, at_least=lambda _: 1.5, sleep=action.clock.sleep)
    assert action.calls == [0.0, 1.5, 3.5]


def test_spread_waits_differ_and_stay_within_half():
    waits = list(spread([8.0] * 100))
    assert all(4.0 <= wait <= 8.0 for wait in waits) and len(set(waits)) > 1


def test_many_doublings_do_not_overflow():
    assert delay(1.0, 10_000, most=60.0) == 60.0
