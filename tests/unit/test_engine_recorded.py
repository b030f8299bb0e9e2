"""How long the records of samplers are kept."""

import numpy as np
import pytest

from sweeper.engine.batches import Datum, Span
from sweeper.engine.errors import RequestError
from sweeper.engine.losses import RECORDED
from sweeper.engine.recorded import UNUSED_SECONDS, Records
from sweeper.engine.sampling import Sampled
from sweeper.testing import FakeClock

TARGETS = np.array([2, 7, 8])
INPUTS = {"target_tokens": TARGETS, "advantages": np.array([0.0, 1.0, 1.0], np.float32)}
SPANS = (Span("s", 1, 1, sampled=False), Span("s", 0, 2, sampled=True))


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def records(clock):
    made = Records(clock)
    made.add("mine", "s", 2, Sampled([7, 8, 9], [-1.0, -2.0, -3.0], True, []))
    return made


def completed(records, session="mine", spans=SPANS, **inputs):
    return records.completed(session, Datum(np.array([1, 2, 7]), INPUTS | inputs, spans), 3)


def test_sampled_tokens_get_their_recorded_logprobs_and_others_no_weight(records):
    inputs = completed(records, weights=np.array([2.0, 2.0, 0.5])).inputs
    assert inputs[RECORDED].tolist() == [0.0, -1.0, -2.0]
    assert inputs["weights"].tolist() == [0.0, 2.0, 0.5]


def test_sequences_are_kept_a_day_after_their_last_use(records, clock):
    for _ in range(3):
        clock.sleep(UNUSED_SECONDS - 1)
        records.sweep()
        completed(records)
    clock.sleep(UNUSED_SECONDS + 1)
    records.sweep()
    with pytest.raises(RequestError, match=r"data\[3\]: no sequence 's' was recorded"):
        completed(records)


def test_sequences_belong_to_their_session_and_end_with_it(records):
    for session in ("other", "mine"):
        with pytest.raises(RequestError, match="recorded in this session"):
            completed(records, session=session)
        records.end("mine")


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ((), "needs provenance"),
        (SPANS[:1], "cover 1 of 3 target tokens"),
        (
            (Span("s", 2, 1, sampled=False), SPANS[1]),
            "tokens 2 to 3, but the sequence s has 2 prompt tokens",
        ),
        ((Span("s", 0, -1, sampled=True),), "a span covers tokens 0 to -1"),
        (
            (SPANS[0], Span("s", 1, 2, sampled=True)),
            "tokens 1 to 3 are not the tokens 1 to 3 of the sequence s",
        ),
    ],
)
def test_wrong_provenance_is_refused_with_its_place(records, spans, message):
    with pytest.raises(RequestError, match=rf"data\[3\]: .*{message}"):
        completed(records, spans=spans)
