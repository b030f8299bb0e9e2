"""The reconcile loop against the fake backend and a clock that the test moves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sweeper.backends.base import JobSpec, JobState, JobStatus
from sweeper.errors import EnvironmentFailure, StoreError
from sweeper.scheduler.components import NOT_YET_SECONDS
from sweeper.scheduler.context import Context
from sweeper.scheduler.loop import POLL_SECONDS, REMOTE_POLL_SECONDS, Scheduler
from sweeper.scheduler.lost_workers import SETTLE_SECONDS
from sweeper.scheduler.progress import Summary
from sweeper.store.documents import encode, read_json
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.launch_settings import Launch
from sweeper.sweep.requests import request_cancel
from sweeper.sweep.states import Event, State
from sweeper.testing import FakeBackend, Fault, Faults, FaultyBackend
from sweeper.worker.main import BEAT_SECONDS

FAILED = "Input/output error (injected)"

LEASE = 60.0
ROOT = Path(__file__).parents[2]
Scene = Any


def test_runs_start_in_order_within_max_parallel(scene):
    first, second, third = scene.ids
    scene.step()
    assert scene.backend.submitted == [token(first, 1), token(second, 1)]
    scene.step()
    assert len(scene.backend.submitted) == 2
    scene.finish(first)
    assert scene.step().counts[State.SUCCEEDED] == 1
    assert scene.backend.submitted[2:] == [token(third, 1)]
    scene.finish(second)
    scene.finish(third)
    assert scene.step().finished
    assert scene.states() == [State.SUCCEEDED] * 3


def test_the_job_is_on_record_before_it_is_submitted_by_this_launcher_or_the_next(scene):
    scene.backend.reachable = False
    scene.step()
    run = scene.ids[0]
    job = read_json(scene.store, scene.folder.job(run, 1))
    assert (job["run"], job["attempt"], job["config"]) == (run, 1, {"x": 0})
    assert scene.folder.read_events()[run] == {(1, Event.INTENT)}
    assert scene.states() == [State.PLANNED] * 3
    scene.backend.reachable = True
    scene.relaunch()
    assert scene.backend.submitted == [token(run, 1) for run in scene.ids[:2]]


def test_the_job_is_written_before_the_intent(scene):
    def after_the_job(call: str) -> None:
        if call.startswith("store.create") and call.endswith("1.intent.json"):
            run = call.split("/")[-2]
            assert scene.store.exists(scene.folder.job(run, 1))

    scene.relaunch(after_the_job)
    assert len(scene.backend.submitted) == 2


class FlakyStore(LocalStore):
    """A store that refuses the creates numbered in `refused`, counted from 1."""

    refused = frozenset({3, 4})
    creates = 0

    def create(self, path: str, data: bytes) -> None:
        self.creates += 1
        if self.creates in self.refused:
            raise StoreError(f"{path}: no space left")
        super().create(path, data)


def test_a_store_that_fails_for_a_while_ends_no_launcher(make_scene):
    scene = make_scene(1)
    notices: list[str | None] = []
    ends = iter([Event.PREEMPTED, Event.SUCCEEDED])

    def hear(summary: Summary) -> None:
        notices.append(summary.unreachable)
        if summary.counts[State.SUBMITTED] and summary.unreachable is None:
            attempt = len(scene.backend.submitted)
            scene.finish(scene.ids[0], attempt, next(ends))

    store, clock = FlakyStore(scene.store.root), scene.clock
    launcher = Scheduler(
        Context(SweepFolder(store, "s"), scene.backend, clock, clock.sleep), notify=hear
    )
    assert launcher.run().finished
    assert scene.states() == [State.SUCCEEDED]
    assert any(sentence and "no space left" in sentence for sentence in notices)
    assert scene.backend.submitted == [token(scene.ids[0], 1), token(scene.ids[0], 2)]


def test_a_submission_whose_reply_was_lost_is_not_repeated(scene):
    scene.backend.lose_reply = True
    assert scene.step().unreachable == "fake: the reply was lost"
    assert scene.relaunch().unreachable is None
    assert sorted(scene.backend.submitted) == [token(run, 1) for run in scene.ids[:2]]
    assert scene.states() == [State.SUBMITTED, State.SUBMITTED, State.PLANNED]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_jobs_start_in_the_sweeps_folder_if_there_is_one(scene, elsewhere):
    where = scene.store.local_path("s")
    scene.backend = Recording()
    scene.relaunch(remote=elsewhere)
    assert [spec.cwd for spec in scene.backend.specs] == ["/" if elsewhere else where] * 2


class Recording(FakeBackend):
    """A backend that records the jobs that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.specs: list[JobSpec] = []

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        self.specs += jobs
        super().submit(jobs)


@pytest.mark.parametrize("retries", [0, 2])
def test_retries_are_counted(make_scene, retries):
    scene = make_scene(1, retries=retries)
    for attempt in range(1, retries + 2):
        scene.step()  # sees how the last one ended
        scene.step(600)
        assert scene.backend.submitted[-1] == token(scene.ids[0], attempt)
        scene.finish(scene.ids[0], attempt, Event.FAILED)
    assert scene.step().finished and scene.step(600).finished
    assert len(scene.backend.submitted) == retries + 1 and scene.states() == [State.FAILED]


def test_preempted_runs_go_on_and_cancelled_ones_do_not(scene):
    first, second, _ = scene.ids
    scene.step()
    scene.finish(first, event=Event.PREEMPTED)
    scene.finish(second, event=Event.CANCELLED)
    scene.step()
    scene.step()
    assert token(first, 2) in scene.backend.submitted
    assert token(second, 2) not in scene.backend.submitted


def test_a_worker_that_died_without_a_word(scene):
    run = scene.running()
    scene.beat(run)
    scene.step()
    scene.backend.end(token(run, 1), 137)
    scene.step(SETTLE_SECONDS - 1)
    assert scene.states()[0] is State.RUNNING
    scene.step(2)
    assert scene.states()[0] is State.FAILED
    body: Any = read_json(scene.store, scene.folder.event(run, 1, Event.FAILED))
    assert (body["code"], body["reason"]) == (137, "killed")


def test_a_job_that_ended_before_its_worker_began(scene):
    run = scene.ids[0]
    scene.step()
    scene.backend.end(token(run, 1), 3)
    scene.step()
    scene.step(SETTLE_SECONDS + 1)
    body: Any = read_json(scene.store, scene.folder.event(run, 1, Event.FAILED))
    assert (body["code"], body["reason"]) == (3, "start")
    assert "before its worker started" in body["detail"]


def test_events_written_during_a_poll_count(scene):
    run = scene.ids[0]

    class Late(FakeBackend):
        def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
            if (1, Event.CLAIMED) in scene.events(run):
                scene.worker(run, 1, Event.SUCCEEDED)
                self.end(token(run, 1))
            return super().poll(tokens)

    scene.backend = Late()
    scene.relaunch()
    scene.worker(run, 1, Event.CLAIMED)
    scene.step(10 * SETTLE_SECONDS)
    assert Event.FAILED not in {event for _, event in scene.folder.read_events()[run]}
    assert scene.states()[0] is State.SUCCEEDED


def test_a_second_copy_that_ended_fails_nothing_while_the_first_beats(scene):
    run = scene.running()
    scene.backend.end(token(run, 1), 0)
    for _ in range(10):
        scene.beat(run)
        scene.step(SETTLE_SECONDS - 1)
    assert scene.states()[0] is State.RUNNING


def test_lost_takes_an_expired_lease_and_an_absent_job(scene):
    run = scene.running()
    scene.beat(run)
    scene.step()
    scene.backend.lose(token(run, 1))
    scene.step(LEASE - 1)
    assert scene.states()[0] is State.RUNNING
    scene.step(2)
    assert scene.backend.submitted[-1] == token(run, 2)
    assert (1, Event.LOST) in scene.folder.read_events()[run]


def test_a_launcher_that_only_stops_calls_nothing_lost(scene):
    """Such as `sweeper cancel` of another run, on a machine that does not know this job."""
    run = scene.ids[0]
    scene.step()
    scene.backend.lose(token(run, 1))
    scene.relaunch(starting=False)
    scene.step(2 * LEASE)
    assert scene.states()[0] is State.SUBMITTED
    assert scene.observed()["observed"][run] == "stale"


def test_a_silent_worker_whose_job_runs_is_stale_and_not_lost(scene):
    run = scene.running()
    scene.step(10 * LEASE)
    scene.step(10 * LEASE)
    assert scene.observed()["observed"][run] == "stale"
    assert scene.states()[0] is State.RUNNING
    scene.beat(run)
    scene.step()
    assert run not in read_json(scene.store, scene.folder.observations)["observed"]


def test_the_machine_of_a_silent_worker_is_shown_and_recorded(scene):
    run = scene.running()
    scene.backend.jobs[token(run, 1)] = JobStatus(JobState.RUNNING, node="n7")
    scene.step(10 * LEASE)
    scene.step(10 * LEASE)
    assert scene.observed()["observed"][run] == "stale: on n7"
    scene.backend.jobs[token(run, 1)] = JobStatus(JobState.STOPPING, reason="evicted")
    scene.beat(run)
    scene.step()
    assert scene.observed()["observed"][run] == "stopping: evicted"
    scene.backend.jobs[token(run, 1)] = JobStatus(JobState.ENDED, None, "gone", True, "n7")
    scene.step(SETTLE_SECONDS + 1)
    assert read_json(scene.store, scene.folder.event(run, 1, Event.PREEMPTED))["host"] == "n7"


def test_a_queued_job_is_never_stale_and_can_be_withdrawn(scene):
    run = scene.ids[0]
    job, since = token(run, 1), "2026-11-21T12:01:03Z"
    scene.step()
    scene.backend.jobs[job] = JobStatus(JobState.PENDING, None, "Priority", since=since)
    scene.step(10 * LEASE)
    assert scene.observed()["observed"][run] == "queued since 12:01:03Z: Priority"
    scene.backend.not_yet = {job}
    request_cancel(scene.folder, run, scene.events(run), 0)
    scene.step()
    for _ in range(3):
        scene.step(10 * LEASE)
        assert scene.observed()["observed"][run] == "stopping since 12:01:03Z: Priority"
    cancelled = len(scene.backend.cancelled)
    scene.step(NOT_YET_SECONDS / 2)
    assert cancelled == len(scene.backend.cancelled) == 4  # repeated, but not in every step
    scene.backend.not_yet = set()
    scene.step(NOT_YET_SECONDS)
    scene.step(NOT_YET_SECONDS)
    assert len(scene.backend.cancelled) == 5
    scene.backend.lose(job)
    scene.step()
    assert scene.states()[0] is State.CANCELLED


def test_an_unreachable_backend_changes_no_state(scene):
    scene.step()
    for run in scene.ids[:2]:
        scene.worker(run, 1, Event.CLAIMED)
    scene.backend.reachable = False
    for _ in range(5):
        assert scene.step(10 * LEASE).unreachable == "fake: no answer"
    assert scene.states() == [State.RUNNING, State.RUNNING, State.PLANNED]


def _without_answers(scene: Scene, method: str) -> list[str]:
    """Let calls of this method of the backend fail until the returned list is cleared."""
    failing = [f"backend.{method}"]
    faults = Faults(lambda _, call: Fault.FAIL if call in failing else None)
    fake, scene.backend = scene.backend, FaultyBackend(scene.backend, faults)
    scene.scheduler = scene.new_scheduler()
    scene.backend = fake
    return failing


def _stop_one_while_silent(scene: Scene, method: str) -> list[str]:
    """Let calls fail while one run is to be stopped, another has ended, and a third waits."""
    scene.step()
    failing = _without_answers(scene, method)
    scene.worker(scene.ids[0], 1, Event.CANCEL)
    scene.finish(scene.ids[1])
    assert scene.step().unreachable == f"backend.{method}: {FAILED}"
    return failing


def test_a_job_that_cannot_be_stopped_holds_nothing_up(scene):
    first, _, third = scene.ids
    failing = _stop_one_while_silent(scene, "cancel")
    assert scene.backend.submitted[2:] == [token(third, 1)]
    assert scene.observed()["unreachable"] == f"backend.cancel: {FAILED}"
    failing.clear()
    for _ in range(2):
        assert scene.step().unreachable is None
    assert scene.backend.cancelled == [token(first, 1)]


def test_a_job_that_cannot_be_looked_for_holds_up_no_others_but_keeps_its_place(scene):
    first, second, third = scene.ids
    scene.worker(first, 1, Event.INTENT)
    failing = _without_answers(scene, "find")
    for _ in range(3):
        assert scene.step().unreachable == f"backend.find: {FAILED}"
    assert scene.backend.submitted == [token(second, 1)]
    assert not scene.events(third)
    failing.clear()
    assert scene.step().unreachable is None
    assert scene.backend.submitted == [token(second, 1), token(first, 1)]


def test_a_failed_poll_starts_nothing_but_stops_what_it_can(scene):
    """For example while the accounting of Slurm is down."""
    first, _, third = scene.ids
    _stop_one_while_silent(scene, "poll")
    assert scene.backend.cancelled == [token(first, 1)]
    assert not scene.events(third)


def test_why_a_launcher_gave_up_can_be_read_until_the_next(scene):
    scene.backend.refusal = EnvironmentFailure("sbatch: invalid account")
    with pytest.raises(EnvironmentFailure):
        scene.scheduler.run()
    scene.backend.refusal = None
    assert scene.observed()["held"] == "the launcher gave up: sbatch: invalid account"
    scene.relaunch()
    assert scene.observed()["held"] is None


def test_the_worker_that_came_back_wins_over_lost(scene):
    run = scene.running()
    scene.worker(run, 1, Event.LOST)
    scene.worker(run, 1, Event.RETURNED)
    scene.step()
    assert token(run, 2) not in scene.backend.submitted


def test_retired_runs_are_not_started(scene):
    plan: Any = read_json(scene.store, scene.folder.plan)
    plan["runs"][1]["retired"] = True
    scene.store.replace(scene.folder.plan, encode(plan))
    scene.relaunch()
    assert scene.backend.submitted == [token(scene.ids[0], 1), token(scene.ids[2], 1)]


def test_run_tells_every_change_once_and_ends(make_scene):
    scene = make_scene(2)
    summaries: list[Summary] = []

    def hear(summary: Summary) -> None:
        summaries.append(summary)
        for job in list(scene.backend.jobs):
            run, _, attempt = job.rpartition("-a")
            if not scene.store.exists(scene.folder.event(run, int(attempt), Event.SUCCEEDED)):
                scene.finish(run, int(attempt))

    launcher = Scheduler(
        Context(scene.folder, scene.backend, scene.clock, scene.clock.sleep),
        notify=hear,
    )
    assert launcher.run().counts == {State.SUCCEEDED: 2}
    assert [summary.counts[State.SUCCEEDED] for summary in summaries] == [0, 2]


@pytest.mark.parametrize(("ends_at", "steps"), [(None, [2.0, 4.0]), (0.3, [0.5, 2.5])])
def test_a_job_that_ends_here_is_noticed_at_once_on_a_remote_store(make_scene, ends_at, steps):
    scene = make_scene(1)
    polled: list[float] = []

    class Ends(Exception):
        pass

    def sleep(seconds: float) -> None:
        scene.clock.sleep(seconds)
        if ends_at is not None and scene.clock.now - begun > ends_at:
            scene.backend.jobs[token(scene.ids[0], 1)] = JobStatus(JobState.ENDED, 0)

    def before(call: str) -> None:
        if call.startswith("store.names") and scene.clock.now > begun:
            polled.append(scene.clock.now - begun)
            if polled[-1] > steps[-1]:
                raise Ends

    begun = scene.clock.now
    with pytest.raises(Ends):
        scene.new_scheduler(before, remote=True, sleep=sleep).run()
    assert sorted(set(polled))[:2] == steps


def test_the_documentation_of_backends_has_the_real_waits():
    text = " ".join((ROOT / "docs" / "backends.md").read_text().split())
    for sentence in (
        f"`poll` every {POLL_SECONDS:g} s ({REMOTE_POLL_SECONDS:g} s if the store is remote)",
        f"A worker writes a heartbeat every {BEAT_SECONDS:g} s. ",
        "If a job is `ENDED`, its worker has recorded no outcome, and no heartbeat has come for "
        f"{SETTLE_SECONDS:g} s, then the attempt has failed",
        "If a job is `ABSENT`, and no heartbeat has come for `launch.lease` "
        f"({Launch().lease_s:g} s), then the run is lost",
    ):
        assert sentence in text
