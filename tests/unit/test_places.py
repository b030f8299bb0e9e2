"""A sweep at several places: where its attempts go, and when they move to another place."""

from typing import Any

import pytest

from sweeper.backends.base import JobState, JobStatus
from sweeper.errors import EnvironmentFailure, NoRoom, Unreachable
from sweeper.results.sweeps import Sweep
from sweeper.scheduler.failures import SERVICE_TRIES
from sweeper.store.documents import read_json
from sweeper.sweep.folder import token
from sweeper.sweep.states import Event, State
from sweeper.testing import FakeBackend, Fault, Faults, Killed
from sweeper.worker.claim import claim, reopen

BOTH = [{"backend": "fake", "max_parallel": 1}, {"backend": "spare", "max_parallel": None}]


def _place(scene: Any, run: str, attempt: int = 1) -> str | None:
    return scene.folder.place_of(run, attempt)


def test_each_place_gets_its_share_in_their_order(pair: Any) -> None:
    scene, fake, spare = pair(4)
    scene.step()
    first, second, third, fourth = (token(run, 1) for run in scene.ids)
    assert (fake.submitted, spare.submitted) == ([first], [second, third])
    assert [_place(scene, run) for run in scene.ids] == ["fake", "spare", "spare", None]
    scene.finish(scene.ids[0])
    scene.step()
    assert fake.submitted == [first, fourth]


def test_the_place_is_on_record_before_the_job_is_submitted(pair: Any) -> None:
    """After a kill during the submission, the next launcher looks for the job only there."""
    scene, fake, spare = pair(1, max_parallel=1)
    fake.refusal = Unreachable("fake: the submission is cut off")
    scene.step()
    assert _place(scene, scene.ids[0]) == "fake"
    assert scene.events(scene.ids[0]) == {(1, Event.INTENT)}
    fake.refusal = None
    scene.relaunch()
    assert (fake.submitted, spare.submitted) == ([token(scene.ids[0], 1)], [])


def test_a_preempted_run_goes_to_the_next_place(pair: Any) -> None:
    scene, fake, spare = pair(1)
    (run,) = scene.ids
    scene.step()
    for attempt in (1, 2):
        scene.finish(run, attempt, Event.PREEMPTED, reason="terminated")
        scene.relaunch()
        scene.step(10.0)
    assert (fake.submitted, spare.submitted) == ([f"{run}-a1", f"{run}-a3"], [f"{run}-a2"])


def test_a_preempted_run_stays_if_the_next_place_is_full(pair: Any) -> None:
    full = [{"backend": "fake", "max_parallel": 2}, {"backend": "spare", "max_parallel": 1}]
    scene, fake, spare = pair(3, backends=full)
    first = scene.ids[0]
    scene.step()
    scene.finish(first, 1, Event.PREEMPTED)
    scene.step()
    assert fake.submitted == [f"{first}-a1", f"{scene.ids[1]}-a1", f"{first}-a2"]
    assert len(spare.submitted) == 1


@pytest.mark.parametrize(
    "refusal", [NoRoom("fake: full"), EnvironmentFailure("fake: no such queue")]
)
def test_a_refused_job_goes_to_the_next_place(pair: Any, refusal: EnvironmentFailure) -> None:
    scene, fake, spare = pair(2, max_parallel=2)
    fake.refusal = refusal
    first = scene.ids[0]
    assert scene.step().unreachable == str(refusal)
    scene.step()
    assert fake.submitted == []
    assert spare.submitted == [token(scene.ids[1], 1), token(first, 2)]
    assert (1, Event.PREEMPTED) in scene.events(first)
    # If its job starts after all, the worker cannot claim the attempt.
    assert not claim(scene.folder, first, 1)
    assert scene.states() == [State.SUBMITTED, State.SUBMITTED]


def test_a_full_place_is_tried_again_later(pair: Any) -> None:
    scene, fake, _ = pair(6, backends=[{"backend": "fake"}, BOTH[0] | {"backend": "spare"}])
    fake.refusal = NoRoom("fake: full")
    scene.step()
    fake.refusal = None
    scene.step()
    assert fake.submitted == []
    scene.step(20.0)
    assert len(fake.submitted) == 1  # one job tests the place
    scene.step()
    assert len(fake.submitted) > 1


def test_a_refusal_for_good_by_the_last_place_is_an_error(pair: Any) -> None:
    scene, fake, spare = pair(2)
    fake.refusal, spare.refusal = EnvironmentFailure("no fake"), EnvironmentFailure("no spare")
    with pytest.raises(EnvironmentFailure, match="no spare"):
        scene.step()


def test_a_silent_place_does_not_hold_up_the_others(pair: Any) -> None:
    """Its runs move only if no worker claims them within a lease."""
    scene, fake, spare = pair(4)
    scene.step()
    first, second = scene.ids[:2]
    scene.worker(first, 1, Event.CLAIMED)
    fake.reachable = False
    scene.finish(second)
    summary = scene.step()
    assert summary.unreachable == "fake: no answer"
    assert token(scene.ids[3], 1) in spare.submitted
    scene.step(60.0, times=10)
    # Its worker claimed the attempt and may be running: it does not count as lost.
    assert scene.events(first) == {(1, Event.INTENT), (1, Event.SUBMITTED), (1, Event.CLAIMED)}


@pytest.fixture
def unsure(pair: Any) -> tuple[Any, FakeBackend, FakeBackend, str]:
    """Return `pair` with a run that `fake` may have: the reply was lost, and `fake` is silent."""
    scene, fake, spare = pair(1)
    fake.lose_reply = True
    scene.step()
    fake.reachable = False
    return scene, fake, spare, scene.ids[0]


def test_a_run_that_a_silent_place_may_have_is_withdrawn_after_a_lease(unsure: Any) -> None:
    scene, _, spare, run = unsure
    scene.step()
    scene.step(50.0)
    assert spare.submitted == []
    scene.step(20.0)
    assert spare.submitted == [f"{run}-a2"]
    assert not claim(scene.folder, run, 1)
    body: Any = read_json(scene.store, scene.folder.event(run, 1, Event.PREEMPTED))
    assert body["reason"] == "withdrawn"
    assert body["detail"].startswith("fake: no answer for ")


def test_a_place_silent_for_long_is_left_until_it_answers(pair: Any) -> None:
    """Without a running job there, only a real request shows whether it answers."""
    shares = [{"backend": "fake", "max_parallel": 2}, {"backend": "spare", "max_parallel": 2}]
    scene, fake, spare = pair(4, backends=shares, max_parallel=4)
    fake.reachable = False
    scene.step(30.0, times=4)
    here, there = scene.ids[2:], scene.ids[:2]
    for run in here:
        scene.finish(run)
    scene.step(30.0)
    assert spare.submitted[2:] == [token(run, 2) for run in there]
    for run in there:
        scene.finish(run, 2, Event.PREEMPTED)
    fake.reachable = True
    scene.step()
    scene.step(400.0)
    assert fake.submitted == [token(there[0], 3)]  # one job tests the place


def test_a_refusal_before_the_silence_moves_the_run_at_once(pair: Any) -> None:
    scene, fake, spare = pair(1)
    fake.refusal = NoRoom("fake: full")
    scene.step()
    fake.reachable = False
    scene.step()
    assert spare.submitted == [token(scene.ids[0], 2)]


def test_a_claim_before_the_withdrawal_keeps_its_attempt(unsure: Any) -> None:
    scene, _, spare, run = unsure
    assert claim(scene.folder, run, 1)
    scene.beat(run)
    scene.step(70.0)
    assert spare.submitted == []
    assert scene.states() == [State.RUNNING]


def test_a_cancel_just_before_a_withdrawn_run_restarts_counts(pair: Any) -> None:
    """A retry after the cancel counts too."""
    scene, fake, spare = pair(1)
    (run,) = scene.ids
    fake.refusal = NoRoom("fake: full")

    def cancel_first(call: str) -> None:
        if call == f"store.create {scene.folder.event(run, 1, Event.RETRY)}":
            scene.worker(run, 1, Event.CANCEL)

    scene.scheduler = scene.new_scheduler(cancel_first)
    scene.step(20.0, times=4)
    assert spare.submitted == []
    assert {(1, Event.CANCEL), (1, Event.RETRY), (2, Event.CANCEL)} <= scene.events(run)
    scene.worker(run, 2, Event.RETRY)
    scene.scheduler = scene.new_scheduler()
    scene.step(20.0, times=3)
    assert [job for job in (*fake.submitted, *spare.submitted) if job.startswith(run)]


@pytest.mark.parametrize("answers", [True, False])
def test_a_withdrawal_cut_off_by_a_kill_is_finished_by_the_next(unsure: Any, answers: bool) -> None:
    """The killed launcher claimed the attempt, so no worker will end it."""
    scene, fake, spare, run = unsure
    claimed = f"store.create {scene.folder.event(run, 1, Event.CLAIMED)}"
    scene.relaunch(Faults(lambda _, call: Fault.KILL_AFTER if call == claimed else None))
    with pytest.raises(Killed):
        scene.step(70.0)
    assert scene.states() == [State.RUNNING]
    fake.reachable = answers
    fake.end(token(run, 1))  # its worker found the attempt claimed, and ended
    scene.scheduler = scene.new_scheduler()
    scene.step(20.0)
    scene.step()
    assert spare.submitted == [token(run, 2)]
    assert (1, Event.FAILED) not in scene.events(run)
    assert (1, Event.RETRY) in scene.events(run)


def test_an_earlier_withdrawal_is_finished_at_a_single_place_too(scene: Any) -> None:
    scene.step()
    run = scene.ids[0]
    claimed = {
        "by": "the launcher",
        "reason": "withdrawn",
        "detail": "there: it accepted no more jobs",
    }
    scene.worker(run, 1, Event.CLAIMED, **claimed)
    scene.backend.end(token(run, 1))
    scene.step(20.0, times=3)
    assert (1, Event.FAILED) not in scene.events(run)
    assert scene.backend.submitted.count(token(run, 2)) == 1


def test_a_claim_whose_reply_was_lost_still_withdraws(unsure: Any) -> None:
    scene, _, spare, run = unsure
    claimed = f"store.create {scene.folder.event(run, 1, Event.CLAIMED)}"
    faults = Faults(lambda _, call: Fault.TWICE if call == claimed else None)
    scene.relaunch(faults)
    scene.step(70.0)
    assert faults.struck
    assert spare.submitted == [token(run, 2)]


def test_withdrawals_do_not_use_up_retries_and_are_unlimited(pair: Any) -> None:
    scene, fake, spare = pair(1)
    (run,) = scene.ids
    fake.refusal, spare.refusal = NoRoom("fake: full"), NoRoom("spare: full")
    last = 0
    while last <= SERVICE_TRIES:
        scene.step(301.0)
        last = max(attempt for attempt, _ in scene.events(run))
    fake.refusal = spare.refusal = None
    while not fake.submitted + spare.submitted:
        scene.step(301.0)
    last = max(attempt for attempt, _ in scene.events(run))
    scene.finish(run, last, Event.FAILED, reason="quota")
    scene.step()
    assert (last, Event.RETRY) in scene.events(run)


def test_a_run_without_retries_left_still_leaves_a_closed_place(pair: Any) -> None:
    scene, fake, spare = pair(1)
    (run,) = scene.ids
    for n in range(1, SERVICE_TRIES + 1):
        scene.worker(run, n, Event.INTENT, place="spare")
        for event in (Event.CLAIMED, Event.FAILED, Event.RETRY):
            scene.worker(run, n, event, reason="quota")
    scene.scheduler = scene.new_scheduler()
    fake.refusal = EnvironmentFailure("fake: no such queue")
    scene.step(300.0, times=8)
    assert spare.submitted == [token(run, SERVICE_TRIES + 2)]


def test_jobs_that_a_place_has_stay_when_it_refuses_others(pair: Any) -> None:
    """Of the other runs, only as many move as the other places have room for."""
    shares = [{"backend": "fake", "max_parallel": 5}, {"backend": "spare", "max_parallel": 1}]
    scene, fake, spare = pair(4, backends=shares, max_parallel=6)
    for run in scene.ids:
        scene.worker(run, 1, Event.INTENT, place="fake")
    has, first, *others = scene.ids
    fake.jobs[token(has, 1)] = JobStatus(JobState.PENDING)
    fake.refusal = NoRoom("fake: full")
    scene.step()
    scene.step()
    assert scene.events(has) == {(1, Event.INTENT), (1, Event.SUBMITTED)}
    assert spare.submitted == [token(first, 2)]
    assert all(scene.events(run) == {(1, Event.INTENT)} for run in others)


@pytest.mark.parametrize("unreachable", [True, False])
def test_a_cancel_during_a_lookup_is_not_overridden(pair: Any, unreachable: bool) -> None:
    scene, fake, spare = pair(1)
    (run,) = scene.ids
    fake.lose_reply, fake.refusal = unreachable, None if unreachable else NoRoom("fake: full")
    scene.step()
    fake.reachable = not unreachable
    find = fake.find

    def meanwhile(tokens: list[str]) -> dict[str, str]:
        if (1, Event.CANCEL) not in scene.events(run) and scene.clock.now > 60:
            scene.worker(run, 1, Event.CANCEL)
        return find(tokens)

    fake.find = meanwhile
    if unreachable:
        scene.step()
    scene.step(70.0, times=3)
    assert (1, Event.CANCEL) in scene.events(run)
    assert (1, Event.RETRY) not in scene.events(run)
    assert spare.submitted == []


def test_a_cancel_reaches_the_places_that_answer(pair: Any) -> None:
    scene, fake, spare = pair(2)
    scene.step()
    for run in scene.ids:
        scene.worker(run, 1, Event.CANCEL)
    fake.reachable = False
    scene.step()
    assert (fake.cancelled, spare.cancelled) == ([], [token(scene.ids[1], 1)])
    fake.reachable = True
    scene.step()
    scene.step()
    assert fake.cancelled == [token(scene.ids[0], 1)]
    assert len(spare.cancelled) == 1


def test_an_attempt_restarted_by_its_backend_stays_at_its_place(pair: Any) -> None:
    scene, _, spare = pair(2)
    scene.step()
    run = scene.ids[1]
    scene.worker(run, 1, Event.CLAIMED)
    assert reopen(scene.folder, run, 1, 2)
    assert _place(scene, run, 2) == "spare"
    spare.jobs[token(run, 2)] = JobStatus(JobState.RUNNING)
    scene.step()
    assert (2, Event.SUBMITTED) in scene.events(run)
    scene.worker(run, 3, Event.INTENT)
    assert _place(scene, run, 3) == "spare"  # recorded by a worker of an older version


def test_an_attempt_opened_by_a_worker_is_submitted_to_its_place(pair: Any) -> None:
    scene, fake, spare = pair(1)
    (run,) = scene.ids

    def slower(call: str) -> None:
        """Open the attempt first, as the worker of a job that its backend restarted."""
        if call == f"store.create {scene.folder.event(run, 1, Event.INTENT)}":
            scene.worker(run, 1, Event.INTENT, place="spare")

    scene.relaunch(slower)
    assert (fake.submitted, spare.submitted) == ([], [token(run, 1)])


def test_a_run_record_names_its_place(pair: Any) -> None:
    scene, *_ = pair(4)
    scene.step()
    runs = Sweep(scene.folder).runs
    assert [run.backend for run in runs] == ["fake", "spare", "spare", None]
    assert runs[1].record(values=False).get("backend") == "spare"
    assert "backend" not in runs[3].record(values=False)


def test_a_damaged_intent_holds_back_its_run_alone(pair: Any) -> None:
    scene, fake, spare = pair(4)
    scene.step()
    first, second, _, last = scene.ids
    scene.store.replace(scene.folder.event(first, 1, Event.INTENT), b"")
    scene.scheduler = scene.new_scheduler()
    scene.finish(second)
    fake.reachable = False
    summary = scene.step()
    assert token(last, 1) in spare.submitted
    assert f"{first}/1.intent.json: damaged" in summary.unreachable
    assert scene.events(first) == {(1, Event.INTENT), (1, Event.SUBMITTED)}
