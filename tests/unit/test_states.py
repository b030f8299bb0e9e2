"""The fold from events to a state."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.sweep.states import (
    Event,
    RunState,
    State,
    begun_anew,
    fold,
    is_finished,
    parse_name,
    wants_attempt,
)

EVENTS = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(list(Event))), max_size=12)


def test_an_intent_opens_an_attempt_and_changes_no_state() -> None:
    assert fold([]) == RunState(State.PLANNED, 0, 0, None)
    before = [(1, Event.CLAIMED), (1, Event.FAILED)]
    after = fold([*before, (2, Event.INTENT)])
    assert after == RunState(State.FAILED, 1, 2, Event.FAILED)
    assert after.unacknowledged
    assert not fold(before).unacknowledged


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ("intent submitted", State.SUBMITTED),
        ("intent submitted claimed", State.RUNNING),
        ("intent claimed", State.RUNNING),  # the launcher died before it acknowledged
        ("intent submitted claimed succeeded", State.SUCCEEDED),
        ("intent submitted claimed lost", State.LOST),
        ("intent submitted claimed lost returned", State.RUNNING),
        ("intent submitted claimed lost succeeded", State.SUCCEEDED),
        ("intent submitted claimed failed succeeded", State.SUCCEEDED),
        ("intent submitted claimed preempted cancelled", State.CANCELLED),
    ],
)
def test_the_state_of_an_attempt_in_any_order_of_events(events: str, state: State) -> None:
    pairs = [(1, Event(name)) for name in events.split()]
    for order in itertools.permutations(pairs):
        assert fold(order).state is state


@given(EVENTS, st.randoms())
def test_order_and_repetition_do_not_matter(events: list[tuple[int, Event]], random) -> None:
    shuffled = events * 2
    random.shuffle(shuffled)
    assert fold(shuffled) == fold(events)


@given(EVENTS)
def test_a_newer_attempt_decides(events: list[tuple[int, Event]]) -> None:
    state = fold([*events, (9, Event.CLAIMED)])
    assert (state.state, state.attempt) == (State.RUNNING, 9)


TRANSITIONS: dict[State, frozenset[State]] = {
    # A worker may claim, and even end, before its launcher's acknowledgement is written.
    State.PLANNED: frozenset(
        {State.SUBMITTED, State.RUNNING, State.FAILED, State.LOST, State.CANCELLED}
    ),
    State.SUBMITTED: frozenset({State.RUNNING, State.FAILED, State.CANCELLED, State.LOST}),
    State.RUNNING: frozenset(
        {State.SUCCEEDED, State.FAILED, State.PREEMPTED, State.CANCELLED, State.LOST}
    ),
    # The worker came back before a newer attempt, or a newer attempt was submitted.
    State.LOST: frozenset(State) - {State.PLANNED, State.LOST},
    State.PREEMPTED: frozenset({State.SUBMITTED, State.RUNNING, State.FAILED, State.CANCELLED}),
    State.FAILED: frozenset({State.SUBMITTED, State.RUNNING, State.CANCELLED, State.SUCCEEDED}),
    # A retry undoes a cancel. A worker that was thought lost, or whose launcher had just opened
    # the attempt, may still record its outcome.
    State.CANCELLED: frozenset(State) - {State.CANCELLED},
    State.SUCCEEDED: frozenset(),
}
"""The states that may follow each state as events arrive. A worker's `succeeded` overrides the
launcher's `failed` of the same attempt, never the other way round."""

# At least one of these events precedes each event of an attempt; a worker records one outcome.
CAUSES = {
    Event.SUBMITTED: {Event.INTENT},
    Event.CLAIMED: {Event.INTENT},
    Event.LOST: {Event.SUBMITTED, Event.CLAIMED},
    Event.RETURNED: {Event.LOST},
    Event.PREEMPTED: {Event.CLAIMED},
    Event.FAILED: {Event.SUBMITTED, Event.CLAIMED},
    Event.SUCCEEDED: {Event.CLAIMED},
}


@given(EVENTS)
def test_states_change_only_as_in_the_table(events: list[tuple[int, Event]]) -> None:
    seen: list[tuple[int, Event]] = []
    for attempt, event in events:
        before = fold(seen)
        happened = {e for a, e in seen if a == attempt}
        outcome = event in (Event.PREEMPTED, Event.SUCCEEDED)
        second = outcome and happened & {Event.PREEMPTED, Event.SUCCEEDED}
        unlost = event is Event.RETURNED and Event.CLAIMED not in happened
        if second or unlost or (event in CAUSES and not happened & CAUSES[event]):
            continue
        seen.append((attempt, event))
        after = fold(seen)
        assert after.attempt >= before.attempt
        if after.state is not before.state and after.attempt == before.attempt:
            assert after.state in TRANSITIONS[before.state]


def test_file_names_of_events_are_parsed() -> None:
    assert parse_name("12.claimed.json") == (12, Event.CLAIMED)
    for name in ("1.exploded.json", "claimed.json", "x.claimed.json", "1.claimed", ".tmp-1.2.json"):
        assert parse_name(name) is None


@pytest.mark.parametrize(
    ("events", "retries", "finished", "retired"),
    [
        (set(), 0, False, True),
        ({(1, Event.CLAIMED)}, 0, False, False),
        ({(1, Event.FAILED)}, 0, True, True),
        ({(1, Event.FAILED)}, 1, False, True),
        ({(1, Event.FAILED), (2, Event.INTENT)}, 0, False, True),
        ({(1, Event.PREEMPTED)}, 0, False, True),
        ({(1, Event.PREEMPTED), (1, Event.CANCEL)}, 0, True, True),
        ({(1, Event.SUCCEEDED)}, 0, True, True),
    ],
)
def test_when_a_run_is_finished(
    events: set[tuple[int, Event]], retries: int, finished: bool, retired: bool
) -> None:
    """`retired`: the same for a retired run."""
    assert is_finished(events, retries) == finished
    assert is_finished(events, retries, retired=True) == retired


def test_only_again_restarts_a_run_after_a_success() -> None:
    """A `retry` must not repeat a run that has succeeded after all; `again` does."""
    events = {(1, Event.CLAIMED), (1, Event.LOST), (1, Event.RETRY), (1, Event.SUCCEEDED)}
    assert not wants_attempt(events, 3) and is_finished(events, 3)
    again = events | {(1, Event.AGAIN)}
    assert wants_attempt(again, 0) and not is_finished(again, 0)
    assert fold(again).state is State.SUCCEEDED  # until the next attempt is submitted
    assert not wants_attempt(again | {(1, Event.CANCEL), (2, Event.CANCEL)}, 0)
    begun = again | {(2, Event.INTENT), (2, Event.CLAIMED)}
    assert not wants_attempt(begun, 0) and begun_anew(begun, 2) == 2
    over = begun | {(2, Event.SUCCEEDED)}
    assert not wants_attempt(over, 0) and is_finished(over, 0)
    # A retry after the second attempt failed may use that attempt's files, but no older ones.
    assert begun_anew(begun | {(2, Event.FAILED), (3, Event.INTENT)}, 3) == 2
    assert begun_anew(events, 2) == 1
