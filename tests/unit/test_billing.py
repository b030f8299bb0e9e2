"""What a service has billed and what was counted; a role that may not see billing."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from support.answering import answering

from sweeper.engine.errors import RequestError
from sweeper.engine.listing import billing
from sweeper.engine.meter import HOURS, Meter
from sweeper.errors import EnvironmentFailure
from sweeper.money.billing import Billed, billed, explained, since_first
from sweeper.results.service_requests import Service
from sweeper.sweep.usage import Counts


@pytest.mark.parametrize(
    ("ours", "theirs", "fresh", "expected"),
    [
        (Counts(10, 0, 5, 7), Counts(10, 0, 5, 7), True, []),
        (Counts(10), Counts(13, 0, 2), False, ["billed but not counted: 3 prefill, 2 sample"]),
        (Counts(train=9), Counts(train=4), True, ["counted but not billed: 5 train (billing lags"]),
        (Counts(train=9), Counts(), False, ["counted but not billed: 9 train (the service no"]),
        (Counts(10), Counts(4, 6), True, ["6 prompt tokens were read from the cache"]),
    ],
)
def test_a_difference_is_explained(ours, theirs, fresh, expected):
    explanation = explained(ours, theirs, fresh=fresh, unseen=0)
    assert len(explanation) == len(expected)
    assert all(line.startswith(start) for line, start in zip(explanation, expected, strict=True))


def test_what_was_billed_can_be_asked_for_by_the_hour():
    now = [1_800_000_000.0]
    meter = Meter(lambda: now[0])
    meter.open("s", [], {"sweeper_run": "r"}, None)
    meter.bill("s", "m", trained_tokens=5)
    meter.bill("s", "m", prompt_tokens=10, cached_tokens=4, sampled_tokens=3)
    now[0] += 3600
    meter.bill("s", "m", trained_tokens=1, forward_tokens=2)
    counts, about = meter.billed(0, now[0] + 1)
    assert {(e.hour % 7200 // 3600, e.kind, e.cached): n for e, n in counts.items()} == {
        (0, "training", False): 5, (0, "sampling_prefill", False): 6,
        (0, "sampling_prefill", True): 4, (0, "sampling_sample", False): 3,
        (1, "training", False): 1, (1, "sampling_prefill", False): 2,
    }  # fmt: skip
    assert about == {"s": {"sweeper_run": "r"}}
    assert not meter.billed(now[0] + 3600, now[0] + 7200)[0]
    now[0] += HOURS * 3600
    meter.bill("s", "m", trained_tokens=1)
    assert len(meter.billed(0, now[0] + 1)[0]) < 4  # older hours can no longer be requested


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01T00:00:00Z", "2026-01-16T00:00:00Z"),
        ("2026-01-01T00:30:00Z", "2026-01-02T00:00:00Z"),
        ("yesterday", "2026-01-02T00:00:00Z"),
    ],
)
def test_billing_refuses_invalid_times(begin, end):
    service: Any = type("Service", (), {"meter": Meter()})()
    with pytest.raises(RequestError):
        billing(service, {}, {"starting_on": begin, "ending_before": end})


@pytest.fixture
def serving() -> Iterator[Any]:
    """Serve a status and a document, and record the requests."""
    requests: list[str] = []

    serving = SimpleNamespace(answer=(200, {"data": [], "sessions": {}}), asked=requests)

    def answer(path: str) -> tuple[int, Any]:
        requests.append(path)
        return serving.answer

    with answering(answer) as url:
        serving.place = Service(url, "tml-none")
        yield serving


def test_a_role_without_billing_access_gets_one_line(serving):
    serving.answer = (403, {"detail": "billing view access is required"})
    with pytest.raises(EnvironmentFailure) as caught:
        billed(serving.place, datetime.now(UTC))
    assert f"{serving.place.url} does not show its billing to this key (403)" in str(caught.value)
    assert "your role in the organization may lack the permission" in str(caught.value)


def test_what_is_billed_is_summed_by_run(serving):
    def event(session: str | None, usd: float | None, **info: Any) -> dict[str, Any]:
        hour = {"bucket_start": "2026-01-01T00:00:00Z", "bucket_end": "2026-01-01T01:00:00Z"}
        cost = {"estimated_cost_usd": usd}
        return {**hour, **cost, "session_id": session, "base_model": "m", "event_info": info}

    metadata = {"sweeper_sweep": "s", "sweeper_run": "r", "sweeper_attempt": "1"}
    events = [
        event("one", 0.5, type="training", token_count=10),
        event("one", 0.25, type="sampling_prefill", token_count=4, cached=False),
        event("one", None, type="sampling_prefill", token_count=3, cached=True),
        event("one", 1.0, type="sampling_sample", token_count=2),
        event("other", 9.0, type="training", token_count=99),
        event(None, 9.0, type="storage", gigabyte_hours=3.0),
        event("one", None, type="checkpoint", count=2),
    ]
    sessions = {"one": {"user_metadata": metadata}, "other": {"user_metadata": None}}
    serving.answer = (200, {"data": events, "sessions": sessions})
    bill = billed(serving.place, datetime.now(UTC))
    assert bill == {("s", "r"): Billed(Counts(4, 3, 2, 10), 1.75, unpriced=True)}
    serving.asked.clear()
    billed(serving.place, datetime.now(UTC) - timedelta(days=30))
    assert len(serving.asked) == 3  # one answer covers at most 14 days


def test_billing_starts_at_the_earliest_time():
    assert since_first([None, "2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"]).day == 1
    assert since_first([None]) <= datetime.now(UTC)
