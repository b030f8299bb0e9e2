"""A followed state is read until its end, and a store that does not answer is reported once."""

import time
from collections.abc import Iterator

import pytest

from sweeper.errors import StoreError
from sweeper.results.waiting import Live


def _live(answers: Iterator[int | StoreError], shown: list[object], **more: object) -> Live[int]:
    def read() -> int:
        answer = next(answers)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    options = {"show": shown.append, "ended": lambda number: number == 3} | more
    return Live(read, **options)  # pyright: ignore[reportArgumentType]


def test_each_state_is_shown_until_the_end() -> None:
    shown: list[object] = []
    assert _live(iter([1, 2, 3, 4]), shown, pause=lambda _: 0.0).run() == 3
    assert shown == [1, 2, 3]


def test_a_store_that_stops_answering_is_reported_once_and_read_again() -> None:
    shown: list[object] = []
    gone, other = StoreError("no answer"), StoreError("still none")
    answers = iter([1, gone, gone, other, 2, gone, 3])
    live = _live(answers, shown, pause=lambda _: 0.0, tell=shown.append)
    states = [live.poll()]
    pauses: list[float] = []
    while not live.ended:
        states.append(live.poll())
        pauses.append(live.pause)
    assert states == [1, 1, 1, 1, 2, 2, 3]
    lines = ["no answer; trying again", "still none; trying again"]
    assert shown == [1, *lines, 2, lines[0], 3]
    assert [pause > 0 for pause in pauses] == [True, True, True, False, True, False]


def test_a_store_that_never_answered_raises() -> None:
    with pytest.raises(StoreError, match="never"):
        _live(iter([StoreError("never")]), [], tell=print).poll()
    live = _live(iter([1, StoreError("gone")]), [], pause=lambda _: 0.0)
    with pytest.raises(StoreError, match="gone"):
        live.run()


def test_slow_polls_are_rare_and_a_timeout_ends_the_wait() -> None:
    def read() -> int:
        time.sleep(0.02)
        return 1

    live = Live(read, pause=lambda _: 0.0, share=20)
    begun = time.monotonic()
    assert live.run(timeout=0.1) == 1
    assert live.pause >= 0.4
    assert not live.ended and time.monotonic() - begun < 0.4
