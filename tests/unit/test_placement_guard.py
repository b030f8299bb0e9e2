"""A launch elsewhere is refused while the sweep may have jobs at its earlier place."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeper.backends import registered
from sweeper.backends.aws_batch.backend import AwsBatchBackend
from sweeper.backends.aws_batch.client import Aws
from sweeper.backends.aws_batch.options import Options
from sweeper.backends.base import Capabilities, Counter, JobState, JobStatus
from sweeper.backends.slurm.backend import SlurmBackend
from sweeper.backends.slurm.commands import Slurm
from sweeper.errors import StoreError, UsageError
from sweeper.launcher.placement_guard import place_of, refuse_moved_sweep
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.states import Event
from sweeper.testing import FAKE, FakeBackend

HERE = {"backend": "fake", "cluster": "one"}
THERE = {"backend": "fake", "cluster": "two"}


class Clustered(FakeBackend):
    """A fake backend on the cluster `one`."""

    def location(self) -> dict[str, str]:
        return {"cluster": "one"}


@pytest.fixture
def launched(make_scene: Callable[..., Any], home: Path) -> Callable[..., Any]:
    """Return `launched(*events)`, which makes a sweep launched to `HERE`, with these events of its
    first attempts, and a function that launches it to another place."""

    def make(*events: Event) -> tuple[Any, Callable[[dict[str, str]], None]]:
        scene = make_scene(runs=5)
        scene.launch_to(HERE)
        for event in events:
            for run in scene.ids:
                scene.worker(run, 1, event)
        return scene, scene.launch_to

    return make


def test_the_place_of_a_backend_is_its_name_and_location() -> None:
    assert place_of(Clustered()) == HERE
    assert place_of(FakeBackend()) == {"backend": "fake"}


@pytest.mark.parametrize("events", [(Event.INTENT, Event.SUBMITTED), (Event.INTENT, Event.CLAIMED)])
def test_a_launch_elsewhere_is_refused_while_jobs_may_wait(
    launched: Any, events: tuple[Event, ...]
) -> None:
    _, again = launched(*events)
    again(HERE)
    message = (
        r"s: unfinished runs were submitted to fake \(cluster one\), .* fake \(cluster two\)"
        r" .*: launch with the earlier setting, or use `sweeper cancel`, launch, and use "
        r"`sweeper retry` for these runs: x=0, x=1, x=2 and 2 more"
    )
    with pytest.raises(UsageError, match=message) as caught:
        again(THERE)
    assert "\n" not in str(caught.value)
    again(HERE)  # the refused launch has changed nothing
    with pytest.raises(UsageError, match="a launch to local would not"):
        again({"backend": "local"})


@pytest.mark.parametrize(
    "events",
    [
        (),
        (Event.INTENT, Event.SUBMITTED, Event.CLAIMED, Event.SUCCEEDED),
        (Event.INTENT, Event.SUBMITTED, Event.CLAIMED, Event.PREEMPTED),
        (Event.INTENT, Event.SUBMITTED, Event.LOST),
        (Event.INTENT, Event.SUBMITTED, Event.CANCEL),
    ],
)
def test_a_launch_elsewhere_is_allowed_once_no_job_may_wait(
    launched: Any, events: tuple[Event, ...]
) -> None:
    scene, again = launched(*events)
    again(THERE)
    scene.worker(scene.ids[0], 2, Event.SUBMITTED)
    with pytest.raises(UsageError, match=r"submitted to fake \(cluster two\)"):
        again(HERE)


def test_the_earlier_place_is_asked_for_unconfirmed_jobs(launched: Any) -> None:
    """After a refused submission, attempts have an intent but no job."""
    scene, again = launched(Event.INTENT)
    backend = scene.backend = Clustered()
    backend.reachable, clock = False, scene.clock
    message = r"fake \(cluster one\) may have jobs .* \(fake: no an"
    with scene.offered():
        with pytest.raises(UsageError, match=message):
            refuse_moved_sweep(scene.folder, [THERE], clock=clock, sleep=clock.sleep)
        assert clock.now > 15  # longer than AWS Batch needs for a reliable listing
        backend.reachable = True
        backend.jobs[token(scene.ids[1], 1)] = JobStatus(JobState.PENDING)
        with pytest.raises(UsageError, match=r"submitted to fake \(cluster one\), .*: x=1$"):
            again(THERE)
        backend.jobs.clear()
        again(THERE)
        # The only cluster that can be reached from here is `one`.
        with pytest.raises(
            UsageError, match=r"fake \(cluster two\) may have .* \(it cannot be reached"
        ):
            again(HERE)


def test_preempted_runs_hold_a_place_that_restarts_them(launched: Any) -> None:
    _, again = launched(Event.SUBMITTED, Event.CLAIMED, Event.PREEMPTED)
    restarting = FAKE._replace(capabilities=lambda _: Capabilities(restarts=Counter("COUNT")))
    with registered(restarting), pytest.raises(UsageError, match="unfinished"):
        again(THERE)


def test_without_a_recorded_place_the_backend_decides(scene: Any) -> None:
    scene.worker(scene.ids[0], 1, Event.SUBMITTED)
    scene.store.replace(scene.folder.service, b'{"schema": 1, "env_file": null}')
    refuse_moved_sweep(scene.folder, [HERE])
    with pytest.raises(UsageError, match="submitted to fake, and"):
        refuse_moved_sweep(scene.folder, [{"backend": "local"}])


def test_an_unreadable_place_is_refused_once_jobs_were_submitted(scene: Any) -> None:
    """Otherwise jobs that wait there would be started again elsewhere."""
    for service in (b"{", b'{"env_file": "e", "place": [1]}'):
        scene.store.replace(scene.folder.service, service)
        refuse_moved_sweep(scene.folder, [HERE])  # nothing was submitted: it may be replaced
    scene.worker(scene.ids[0], 1, Event.SUBMITTED)
    with pytest.raises(StoreError, match=r"service.json: place: .*`sweeper cancel s --root .*`"):
        refuse_moved_sweep(scene.folder, [HERE])


def test_a_new_sweep_may_go_anywhere(scene: Any) -> None:
    refuse_moved_sweep(SweepFolder(scene.store, "other"), [HERE])


def test_locations_of_slurm_and_aws_batch() -> None:
    slurm = Slurm()
    slurm.call = lambda *_, **__: "ClusterName = one"  # type: ignore[method-assign]
    assert SlurmBackend(slurm, "s", "/sweeps/s").location() == {"cluster": "one"}
    arn = "arn:aws:batch:eu-central-1:123456789012:job-queue/q"
    aws = Aws("eu-central-1")
    queue = {"jobQueueArn": arn, "state": "ENABLED", "status": "VALID"}
    aws.call = lambda *_, **__: {"jobQueues": [queue]}  # type: ignore[method-assign]
    batch = AwsBatchBackend(aws, Options("q", image="i"), "s", "/sweeps/s")
    batch.check()
    assert batch.location() == {"queue": arn}
