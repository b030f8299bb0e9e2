"""A sweep at several places: where its attempts go, what a place keeps, what goes to the next."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sweeper.backends import Away, capabilities_together, open_places, registered
from sweeper.backends.base import Capabilities, Counter, JobState, JobStatus
from sweeper.errors import (
    EnvironmentFailure,
    GridError,
    NoRoom,
    StoreError,
    Unreachable,
    UsageError,
)
from sweeper.fields.nodes import Problems, read_yaml
from sweeper.grid.apply_overrides import apply_to_launch
from sweeper.grid.launch import read_launch
from sweeper.grid.overrides import read_overrides
from sweeper.launcher import launching, manifest, preflight
from sweeper.launcher.placement_guard import refuse_moved_sweep
from sweeper.planner.plan import plan
from sweeper.results.sweeps import Sweep
from sweeper.scheduler.failures import SERVICE_TRIES
from sweeper.store.documents import encode, read_json
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.launch_settings import Launch, Share
from sweeper.sweep.states import Event, State
from sweeper.testing import FAKE, FakeBackend, FakeClock, Fault, Faults, Killed
from sweeper.worker.claim import claim, reopen

BOTH = [{"backend": "fake", "max_parallel": 1}, {"backend": "spare", "max_parallel": None}]


@pytest.fixture
def pair(
    make_scene: Callable[..., Any],
) -> Iterator[Callable[..., tuple[Any, FakeBackend, FakeBackend]]]:
    """`pair(runs, **launch)`: a sweep at the places `fake`, for one job, and `spare`; and those."""

    def make(runs: int = 3, **launch: Any) -> tuple[Any, FakeBackend, FakeBackend]:
        given = {"backend": "fake+spare", "backends": BOTH, "max_parallel": 3} | launch
        scene = make_scene(runs, **given)
        fake, spare = FakeBackend(), FakeBackend()
        scene.backend = {"fake": fake, "spare": spare}
        scene.scheduler = scene.new_scheduler()
        return scene, fake, spare

    with registered(FAKE._replace(name="spare")):
        yield make


@contextmanager
def _offered(
    opened: Callable[[str], FakeBackend] | None, *names: str, **capable: Any
) -> Iterator[None]:
    """Backends of these names are there, opened by `opened`, or with such capabilities."""
    with ExitStack() as all_of_them:
        for name in (*names, *capable):
            kind = FAKE._replace(name=name)
            if opened is not None:
                kind = kind._replace(open=lambda *_, name=name: opened(name))
            if name in capable:
                kind = kind._replace(capabilities=lambda _, name=name: capable[name])
            all_of_them.enter_context(registered(kind))
        yield


def _place(scene: Any, run: str, attempt: int = 1) -> str | None:
    return scene.folder.place_of(run, attempt)


def test_each_place_gets_its_share_in_their_order(pair: Any) -> None:
    scene, fake, spare = pair(4)
    scene.step()
    first, second, third, fourth = (token(run, 1) for run in scene.ids)
    assert (fake.submitted, spare.submitted) == ([first], [second, third])
    assert [_place(scene, run) for run in scene.ids] == ["fake", "spare", "spare", None]
    scene.worker(scene.ids[0], 1, Event.CLAIMED)
    scene.worker(scene.ids[0], 1, Event.SUCCEEDED)
    fake.end(first)
    scene.step()
    assert fake.submitted == [first, fourth]


def test_the_place_is_on_record_before_the_job_is_submitted(pair: Any) -> None:
    """Killed in between, the next launcher looks for it there, and there alone."""
    scene, fake, spare = pair(1, max_parallel=1)
    fake.refusal = Unreachable("fake: the submission is cut off")
    scene.step()
    assert _place(scene, scene.ids[0]) == "fake"
    assert scene.events(scene.ids[0]) == {(1, Event.INTENT)}
    fake.refusal = None
    scene.scheduler = scene.new_scheduler()
    scene.step()
    assert (fake.submitted, spare.submitted) == ([token(scene.ids[0], 1)], [])


def test_what_was_preempted_goes_to_the_next_place(pair: Any) -> None:
    scene, fake, spare = pair(1)
    (run,) = scene.ids
    scene.step()
    for attempt, there in ((1, fake), (2, spare)):
        scene.worker(run, attempt, Event.CLAIMED)
        scene.worker(run, attempt, Event.PREEMPTED, reason="terminated")
        there.end(token(run, attempt))
        scene.scheduler = scene.new_scheduler()
        scene.step()
        scene.step(10.0)
    assert (fake.submitted, spare.submitted) == ([f"{run}-a1", f"{run}-a3"], [f"{run}-a2"])


def test_it_stays_where_there_is_room_when_the_next_is_full(pair: Any) -> None:
    full = [{"backend": "fake", "max_parallel": 2}, {"backend": "spare", "max_parallel": 1}]
    scene, fake, spare = pair(3, backends=full)
    first = scene.ids[0]
    scene.step()
    scene.worker(first, 1, Event.CLAIMED)
    scene.worker(first, 1, Event.PREEMPTED)
    fake.end(token(first, 1))
    scene.step()
    assert fake.submitted == [f"{first}-a1", f"{scene.ids[1]}-a1", f"{first}-a2"]
    assert len(spare.submitted) == 1


@pytest.mark.parametrize(
    "refusal", [NoRoom("fake: full"), EnvironmentFailure("fake: no such queue")]
)
def test_what_a_place_refuses_goes_to_the_next(pair: Any, refusal: EnvironmentFailure) -> None:
    scene, fake, spare = pair(2, max_parallel=2)
    fake.refusal = refusal
    first = scene.ids[0]
    assert scene.step().unreachable == str(refusal)
    scene.step()
    assert fake.submitted == []
    assert spare.submitted == [token(scene.ids[1], 1), token(first, 2)]
    assert (1, Event.PREEMPTED) in scene.events(first)
    # A job of it that begins all the same finds that it is another's.
    assert not claim(scene.folder, first, 1)
    assert scene.states() == [State.SUBMITTED, State.SUBMITTED]


def test_a_place_that_was_full_is_tried_again_later(pair: Any) -> None:
    scene, fake, _ = pair(6, backends=[{"backend": "fake"}, BOTH[0] | {"backend": "spare"}])
    fake.refusal = NoRoom("fake: full")
    scene.step()
    fake.refusal = None
    scene.step()
    assert fake.submitted == []
    scene.step(20.0)
    assert len(fake.submitted) == 1  # to see
    scene.step()
    assert len(fake.submitted) > 1


def test_a_place_that_never_will_is_an_error_where_it_is_the_last(pair: Any) -> None:
    scene, fake, spare = pair(2)
    fake.refusal, spare.refusal = EnvironmentFailure("no fake"), EnvironmentFailure("no spare")
    with pytest.raises(EnvironmentFailure, match="no spare"):
        scene.step()


def test_a_place_that_is_away_holds_up_no_other(pair: Any) -> None:
    """What it may have stays its own, until no worker has begun for a lease."""
    scene, fake, spare = pair(4)
    scene.step()
    first, second = scene.ids[:2]
    scene.worker(first, 1, Event.CLAIMED)
    fake.reachable = False
    scene.worker(second, 1, Event.CLAIMED)
    scene.worker(second, 1, Event.SUCCEEDED)
    spare.end(token(second, 1))
    summary = scene.step()
    assert summary.unreachable == "fake: no answer"
    assert token(scene.ids[3], 1) in spare.submitted
    for _ in range(10):
        scene.step(60.0)
    # It claimed its attempt, and may be at work: nothing says that it is lost.
    assert scene.events(first) == {(1, Event.INTENT), (1, Event.SUBMITTED), (1, Event.CLAIMED)}


def test_what_was_perhaps_submitted_to_a_place_that_is_away_is_withdrawn(pair: Any) -> None:
    scene, fake, spare = pair(1)
    (run,) = scene.ids
    fake.lose_reply = True
    scene.scheduler.step()
    fake.reachable = False
    scene.step()
    scene.step(50.0)
    assert spare.submitted == []
    scene.step(20.0)
    assert spare.submitted == [f"{run}-a2"]
    assert not claim(scene.folder, run, 1)
    body: Any = read_json(scene.store, scene.folder.event(run, 1, Event.PREEMPTED))
    assert body["reason"] == "withdrawn"
    assert body["detail"].startswith("fake: no answer for ")


def test_a_place_that_is_silent_for_long_is_left_and_used_again_when_it_answers(pair: Any) -> None:
    """With no job at work there, nothing but real questions tells whether it answers."""
    shares = [{"backend": "fake", "max_parallel": 2}, {"backend": "spare", "max_parallel": 2}]
    scene, fake, spare = pair(4, backends=shares, max_parallel=4)
    fake.reachable = False
    for _ in range(4):
        scene.step(30.0)
    here, there = scene.ids[2:], scene.ids[:2]
    for run in here:
        scene.worker(run, 1, Event.CLAIMED)
        scene.worker(run, 1, Event.SUCCEEDED)
        spare.end(token(run, 1))
    scene.step(30.0)
    assert spare.submitted[2:] == [token(run, 2) for run in there]
    for run in there:
        scene.worker(run, 2, Event.CLAIMED)
        scene.worker(run, 2, Event.PREEMPTED)
        spare.end(token(run, 2))
    fake.reachable = True
    scene.step()
    scene.step(400.0)
    assert fake.submitted == [token(there[0], 3)]  # one, to see


def test_what_a_place_refused_before_it_was_silent_goes_to_the_next_at_once(pair: Any) -> None:
    scene, fake, spare = pair(1)
    fake.refusal = NoRoom("fake: full")
    scene.step()
    fake.reachable = False
    scene.step()
    assert spare.submitted == [token(scene.ids[0], 2)]


def test_a_worker_that_was_quicker_keeps_its_attempt(pair: Any) -> None:
    scene, fake, spare = pair(1)
    (run,) = scene.ids
    fake.lose_reply = True
    scene.step()
    fake.reachable = False
    assert claim(scene.folder, run, 1)
    scene.beat(run)
    scene.step(70.0)
    assert spare.submitted == []
    assert scene.states() == [State.RUNNING]


def test_a_cancel_in_the_instant_before_a_withdrawn_run_is_started_again(pair: Any) -> None:
    """It counts, and a retry after it does."""
    scene, fake, spare = pair(1)
    (run,) = scene.ids
    fake.refusal = NoRoom("fake: full")

    def cancel_first(call: str) -> None:
        if call == f"store.create {scene.folder.event(run, 1, Event.RETRY)}":
            scene.worker(run, 1, Event.CANCEL)

    scene.scheduler = scene.new_scheduler(cancel_first)
    for _ in range(4):
        scene.step(20.0)
    assert spare.submitted == []
    assert {(1, Event.CANCEL), (1, Event.RETRY), (2, Event.CANCEL)} <= scene.events(run)
    path = scene.folder.event(run, 2, Event.RETRY)
    scene.store.create(path, encode({"schema": 1}))
    scene.scheduler = scene.new_scheduler()
    for _ in range(3):
        scene.step(20.0)
    assert [job for job in (*fake.submitted, *spare.submitted) if job.startswith(run)]


@pytest.mark.parametrize("answers", [True, False])
def test_a_launcher_that_is_killed_while_it_withdraws(pair: Any, answers: bool) -> None:
    """It has claimed the attempt, and nobody else will end it."""
    scene, fake, spare = pair(1)
    (run,) = scene.ids
    fake.lose_reply = True
    scene.step()
    fake.reachable = False
    claimed = f"store.create {scene.folder.event(run, 1, Event.CLAIMED)}"
    faults = Faults(lambda _, call: Fault.KILL_AFTER if call == claimed else None)
    scene.scheduler = scene.new_scheduler(faults)
    scene.step()
    with pytest.raises(Killed):
        scene.step(70.0)
    assert scene.states() == [State.RUNNING]
    fake.reachable = answers
    fake.end(token(run, 1))  # the job has begun, found it taken, and ended
    scene.scheduler = scene.new_scheduler()
    scene.step(20.0)
    scene.step()
    assert spare.submitted == [token(run, 2)]
    assert (1, Event.FAILED) not in scene.events(run)
    assert (1, Event.RETRY) in scene.events(run)


def test_a_withdrawal_of_a_launcher_before_is_finished_at_one_place_too(scene: Any) -> None:
    scene.step()
    run = scene.ids[0]
    claimed = {"by": "the launcher", "reason": "withdrawn", "detail": "there: it took no more jobs"}
    scene.worker(run, 1, Event.CLAIMED, **claimed)
    scene.backend.end(token(run, 1))
    for _ in range(3):
        scene.step(20.0)
    assert (1, Event.FAILED) not in scene.events(run)
    assert scene.backend.submitted.count(token(run, 2)) == 1


def test_a_claim_of_the_launcher_whose_reply_was_lost_is_its_own(pair: Any) -> None:
    scene, fake, spare = pair(1)
    (run,) = scene.ids
    fake.lose_reply = True
    scene.step()
    fake.reachable = False
    claimed = f"store.create {scene.folder.event(run, 1, Event.CLAIMED)}"
    faults = Faults(lambda _, call: Fault.TWICE if call == claimed else None)
    scene.scheduler = scene.new_scheduler(faults)
    scene.step()
    scene.step(70.0)
    assert faults.struck
    assert spare.submitted == [token(run, 2)]


def test_withdrawals_cost_no_excuse_and_have_no_end(pair: Any) -> None:
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
    scene.worker(run, last, Event.CLAIMED)
    scene.worker(run, last, Event.FAILED, reason="quota")
    for there in (fake, spare):
        there.end(token(run, last))
    scene.step()
    assert (last, Event.RETRY) in scene.events(run)


def test_what_used_up_its_excuses_leaves_a_place_that_is_closed(pair: Any) -> None:
    scene, fake, spare = pair(1)
    (run,) = scene.ids
    for n in range(1, SERVICE_TRIES + 1):
        scene.worker(run, n, Event.INTENT, place="spare")
        for event in (Event.CLAIMED, Event.FAILED, Event.RETRY):
            scene.worker(run, n, event, reason="quota")
    scene.scheduler = scene.new_scheduler()
    fake.refusal = EnvironmentFailure("fake: no such queue")
    for _ in range(8):
        scene.step(300.0)
    assert spare.submitted == [token(run, SERVICE_TRIES + 2)]


def test_what_a_place_has_stays_when_it_refuses_the_others(pair: Any) -> None:
    """Of those that it lacks no more go than the others have room for."""
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
def test_a_cancel_while_the_place_is_asked_is_not_overridden(pair: Any, unreachable: bool) -> None:
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
    for _ in range(3):
        scene.step(70.0)
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


def test_an_attempt_that_its_backend_started_again_is_where_it_was(pair: Any) -> None:
    scene, _, spare = pair(2)
    scene.step()
    run = scene.ids[1]
    scene.worker(run, 1, Event.CLAIMED)
    assert reopen(scene.folder, run, 1, 2)
    assert _place(scene, run, 2) == "spare"
    spare.jobs[token(run, 2)] = JobStatus(JobState.RUNNING)
    scene.step()
    assert (2, Event.SUBMITTED) in scene.events(run)
    scene.store.create(scene.folder.event(run, 3, Event.INTENT), encode({"schema": 1}))
    assert _place(scene, run, 3) == "spare"  # by an older version's worker


def test_an_attempt_that_somebody_else_opened_is_submitted_there(pair: Any) -> None:
    scene, fake, spare = pair(1)
    (run,) = scene.ids

    def slower(call: str) -> None:
        """The job's own backend has started it again, and its worker opens the attempt first."""
        if call == f"store.create {scene.folder.event(run, 1, Event.INTENT)}":
            scene.worker(run, 1, Event.INTENT, place="spare")

    scene.scheduler = scene.new_scheduler(slower)
    scene.step()
    assert (fake.submitted, spare.submitted) == ([], [token(run, 1)])


def test_a_run_says_where_it_is(pair: Any) -> None:
    scene, *_ = pair(4)
    scene.step()
    runs = Sweep(scene.folder).runs
    assert [run.backend for run in runs] == ["fake", "spare", "spare", None]
    assert runs[1].record(values=False).get("backend") == "spare"
    assert "backend" not in runs[3].record(values=False)


HERE, THERE = {"backend": "fake"}, {"backend": "spare", "cluster": "one"}


@pytest.fixture
def launched(
    pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Callable[..., None]]:
    """A sweep with jobs at both places; and what launches it to others."""
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    scene, *_ = pair(2)

    def again(*places: dict[str, str]) -> None:
        plan = scene.folder.read_plan()
        manifest.write_environment(
            SweepFolder(scene.store, plan.name), plan, None, Capabilities(), places
        )

    again(HERE, THERE)
    scene.step()
    return scene, again


def test_places_may_be_added_and_change_their_order(launched: Any) -> None:
    scene, again = launched
    again(THERE, {"backend": "third"}, HERE)
    assert scene.folder.read_service().places == (
        THERE,
        {"backend": "third"},
        HERE,
    )
    # An older version knows of one place, and takes this for another than any of them.
    assert read_json(scene.store, scene.folder.service)["place"] == {"backend": "fake+spare"}


def test_a_place_with_jobs_is_not_left_out(launched: Any) -> None:
    scene, again = launched
    message = r"submitted to spare \(cluster one\), and a launch to fake would .*\(x=1\)"
    with pytest.raises(UsageError, match=message):
        again(HERE)
    with pytest.raises(UsageError, match=r"to fake and spare \(cluster two\) would"):
        again(HERE, THERE | {"cluster": "two"})
    scene.worker(scene.ids[1], 1, Event.SUCCEEDED)
    again(HERE)


def test_attempts_without_a_place_on_record_are_at_the_first(launched: Any) -> None:
    """Of a sweep that an older version has launched, to the one place that it had."""
    scene, _ = launched
    before = {"schema": 1, "env_file": "environment.json", "place": HERE}
    scene.store.replace(scene.folder.service, encode(before))
    for run in scene.ids:
        scene.store.replace(scene.folder.event(run, 1, Event.INTENT), encode({"schema": 1}))
    refuse_moved_sweep(scene.folder, [HERE])
    refuse_moved_sweep(scene.folder, [HERE, THERE])
    with pytest.raises(UsageError, match="unfinished runs were submitted to fake"):
        refuse_moved_sweep(scene.folder, [THERE, HERE])


def test_what_all_places_can_do() -> None:
    several = {
        "one": Capabilities(credentials=("TOKEN",), secrets=frozenset({"KEY", "OTHER"})),
        "two": Capabilities(here=False, restarts=Counter("COUNT"), secrets=frozenset({"KEY"})),
        "three": Capabilities(here=False, files=False, python="python", secrets=frozenset({"KEY"})),
    }
    launch = Launch("one+two", backends=(Share("one"), Share("two")))
    other = launch._replace(backends=(Share("one"), Share("three")))
    with _offered(None, **several):
        together = capabilities_together(launch)
        assert not capabilities_together(other).files
        assert capabilities_together(Launch("three")) is several["three"]
    assert (together.here, together.files, together.restarts) == (False, True, Counter("COUNT"))
    assert (together.credentials, together.secrets) == (("TOKEN",), {"KEY"})


def test_places_that_do_not_see_the_root_are_told_one_by_one(scene: Any) -> None:
    options = {"aws_batch": {"queue": "q", "image": "i"}, "kubernetes": {"image": "i"}}
    shares = tuple(map(Share, ("local", "aws-batch", "kubernetes")))
    launch = Launch("all", backends=shares, options=options)
    with pytest.raises(GridError) as caught:
        preflight.admit(launch, scene.store, "none", (), live=False)
    assert [line.partition(":")[0] for line in caught.value.problems] == ["aws-batch", "kubernetes"]
    assert all("cannot read the folder" in line for line in caught.value.problems)


@pytest.fixture
def failures() -> Iterator[dict[str, EnvironmentFailure]]:
    """Why the places `fake` and `spare` cannot be opened."""
    failures: dict[str, EnvironmentFailure] = {}

    def opened(name: str) -> FakeBackend:
        if name in failures:
            raise failures[name]
        return FakeBackend()

    with _offered(opened, "fake", "spare"):
        yield failures


def test_a_place_that_cannot_be_opened_never_answers(failures: Any) -> None:
    failures["spare"] = EnvironmentFailure("there is no spare here")
    launch = Launch("fake+spare", backends=(Share("fake"), Share("spare")))
    with pytest.raises(EnvironmentFailure, match="no spare"):
        open_places(launch, "s", "/s")
    places = open_places(launch, "s", "/s", some=True)
    assert places["fake"].poll([]) == {}
    for ask in (places["spare"].poll, places["spare"].find, places["spare"].cancel):
        with pytest.raises(Unreachable, match="no spare"):
            ask([])
    with pytest.raises(EnvironmentFailure, match="no spare"):
        open_places(Launch("spare"), "s", "/s", some=True)


def test_a_launch_takes_silence_alone_for_being_away(failures: Any) -> None:
    """What a place refuses, somebody has to mend."""
    launch = Launch("fake+spare", backends=(Share("fake"), Share("spare")))
    failures["spare"] = Unreachable("no answer of spare")
    places = open_places(launch, "s", "/s", quiet=True)
    assert [type(place) for place in places.values()] == [FakeBackend, Away]
    planned = plan({"name": "s", "command": ["/bin/echo", "{x}"], "grid": {"x": [1]}})
    planned = planned._replace(launch=launch)
    preflight.try_out(places, planned, planned.runs)
    with pytest.raises(Unreachable, match="no answer of spare"):
        preflight.try_out({"spare": places["spare"]}, planned, planned.runs)
    failures["spare"] = NoRoom("spare has refused it")
    with pytest.raises(EnvironmentFailure, match="refused it"):
        open_places(launch, "s", "/s", quiet=True)
    failures |= {name: Unreachable(f"no answer of {name}") for name in ("fake", "spare")}
    with pytest.raises(Unreachable, match=r"^no answer of fake; no answer of spare$"):
        open_places(launch, "s", "/s", quiet=True)


def test_a_place_that_could_not_be_opened_is_tried_again() -> None:
    clock, fake = FakeClock(), FakeBackend()
    missing: list[str] = ["there is no spare yet"]

    def opened() -> FakeBackend:
        if missing:
            raise EnvironmentFailure(missing[0])
        return fake

    place = Away("spare", opened, "there is no spare", clock)
    missing[0] = "there is none yet"
    with pytest.raises(Unreachable, match="no spare"):
        place.find(["a"])
    clock.sleep(60.0)
    with pytest.raises(Unreachable, match="none yet"):
        place.find(["a"])
    missing.clear()
    with pytest.raises(Unreachable, match="none yet"):
        place.find(["a"])
    clock.sleep(60.0)
    fake.jobs["a"] = JobStatus(JobState.RUNNING)
    assert place.find(["a"]) == {"a": "a"}


def test_nothing_is_started_at_a_place_that_could_not_be_opened(pair: Any) -> None:
    scene, fake, spare = pair(2)
    away = Away("fake", lambda: fake, "there is no fake", scene.clock)
    scene.backend = {"fake": away, "spare": spare}
    scene.scheduler = scene.new_scheduler()
    scene.step()
    assert spare.submitted == [token(run, 1) for run in scene.ids]
    spare.end(token(scene.ids[0], 1), code=1)
    scene.worker(scene.ids[0], 1, Event.CLAIMED)
    scene.worker(scene.ids[0], 1, Event.PREEMPTED)
    scene.step(60.0)
    assert fake.submitted == [token(scene.ids[0], 2)]


@pytest.fixture
def fake_is_away(pair: Any, failures: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """A sweep of this user's own at two places; and why some of those cannot be opened."""
    scene, *_ = pair(1)
    failures["fake"] = EnvironmentFailure("there is no fake here")
    scene.seal(monkeypatch)
    places = [{"backend": "fake", "cluster": "one"}, {"backend": "spare"}]
    service = read_json(scene.store, scene.folder.service)
    scene.store.replace(scene.folder.service, encode(service | {"places": places}))
    return scene, failures


def test_a_sweep_goes_on_while_one_of_its_places_cannot_be_opened(fake_is_away: Any) -> None:
    scene, failures = fake_is_away
    service = launching.ready(scene.folder)
    # What is on record of the place stays.
    assert service.places[0] == {"backend": "fake", "cluster": "one"}
    scene.worker(scene.ids[0], 1, Event.SUCCEEDED)
    assert launching.drive(scene.folder.address, lambda _: None).counts[State.SUCCEEDED] == 1
    failures["spare"] = EnvironmentFailure("there is no spare here")
    for go_on in (launching.ready, lambda folder: launching.drive(folder.address, print)):
        with pytest.raises(EnvironmentFailure, match="no fake here; there is no spare here"):
            go_on(scene.folder)


def test_a_place_that_is_another_by_now_is_not_asked(fake_is_away: Any) -> None:
    scene, failures = fake_is_away
    failures.clear()

    class Elsewhere(FakeBackend):
        def location(self) -> dict[str, str]:
            return {"cluster": "two"}

    with _offered(lambda _: Elsewhere(), "fake"):
        assert launching.ready(scene.folder).places[0] == {"backend": "fake", "cluster": "one"}
        failures["spare"] = EnvironmentFailure("there is no spare here")
        message = r"jobs are at fake \(cluster one\), but .* two\).*; there is no spare here"
        with pytest.raises(EnvironmentFailure, match=message):
            launching.ready(scene.folder)


def _read(text: str, *overrides: str) -> tuple[Launch, list[str]]:
    problems = Problems()
    root = read_yaml(f"launch: {text}", "grid.yaml", problems)
    assert root is not None
    root, _ = apply_to_launch(root, read_overrides(overrides, problems), problems)
    entries = root.entries
    assert entries is not None
    launch = read_launch(entries["launch"][1], "launch", problems)
    return launch, [str(line) for line in problems.error().problems] if problems else []


@pytest.mark.parametrize(
    ("text", "shares", "most"),
    [
        ("[{local: {max_parallel: 3}}, {slurm: {partition: spot}}]", (3, None), 11),
        ("[local, slurm], max_parallel: 5", (None, None), 5),
        ("[{local: null}, {slurm: {max_parallel: 2}}], max_parallel: 5", (None, 2), 5),
    ],
)
def test_a_grid_with_places(text: str, shares: tuple[int | None, int | None], most: int) -> None:
    launch, wrong = _read(f"{{backends: {text}}}")
    assert not wrong
    assert launch.backends == (Share("local", shares[0]), Share("slurm", shares[1]))
    assert (launch.backend, launch.places) == ("local+slurm", ("local", "slurm"))
    assert launch.max_parallel == most
    given = {"partition": "spot"} if "spot" in text else None
    assert launch.options.get("slurm") == given


def test_one_place_is_a_backend() -> None:
    launch, wrong = _read("{backends: [{slurm: {partition: spot, max_parallel: 3}}]}")
    assert not wrong
    assert launch == Launch("slurm", max_parallel=3, options={"slurm": {"partition": "spot"}})
    assert launch.places == ("slurm",)


def test_a_backend_is_chosen_in_place_of_all() -> None:
    text = "{backends: [{local: {max_parallel: 3}}, {slurm: {partition: spot, max_parallel: 2}}]}"
    launch, wrong = _read(text, "launch.backend=slurm")
    assert not wrong
    assert launch == Launch("slurm", options={"slurm": {"partition": "spot"}})
    launch, wrong = _read("{backend: tmux}", "launch.backends=[local,slurm]")
    assert (launch.places, wrong) == (("local", "slurm"), [])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{backend: tmux, backends: [local]}", "launch has both backend and backends: remove"),
        (
            "{backends: [local, slrum]}",
            "launch.backends[1]: no backend 'slrum': use aws-batch",
        ),
        (
            "{backends: [{tmux: {partition: a}}]}",
            "'partition' is not an option of tmux, but of slurm",
        ),
        (
            "{backends: [{slurm: {partitoin: a}}]}",
            "unknown key 'partitoin' in launch.backends[0].slurm",
        ),
        ("{backends: [local, local]}", "launch.backends[1]: local is given twice"),
        (
            "{backends: [local, slurm], slurm: {mem: 8G}}",
            "launch.slurm: with backends, write a",
        ),
        (
            "{backends: []}",
            "launch.backends is an empty list; it takes a list of backends: NAME",
        ),
        (
            "{backends: local}",
            "launch.backends is a string; it takes a list of backends: NAME",
        ),
        (
            "{backends: [{local: {max_parallel: 0}}]}",
            "launch.backends[0].local.max_parallel is 1 to",
        ),
        (
            "{backends: [{a: 1, b: 2}]}",
            "launch.backends[0] is a mapping; it takes one backend: NAME",
        ),
    ],
)
def test_mistakes_in_places(text: str, line: str) -> None:
    _, wrong = _read(text)
    assert len(wrong) == 1
    assert line in wrong[0]
    assert wrong[0].startswith("grid.yaml:1:")


def test_a_damaged_intent_holds_back_its_run_alone(pair: Any) -> None:
    scene, fake, spare = pair(4)
    scene.step()
    first, second, _, last = scene.ids
    scene.store.replace(scene.folder.event(first, 1, Event.INTENT), b"")
    scene.scheduler = scene.new_scheduler()
    scene.worker(second, 1, Event.CLAIMED)
    scene.worker(second, 1, Event.SUCCEEDED)
    spare.end(token(second, 1))
    fake.reachable = False
    summary = scene.step()
    assert token(last, 1) in spare.submitted
    assert f"{first}/1.intent.json: damaged" in summary.unreachable
    assert scene.events(first) == {(1, Event.INTENT), (1, Event.SUBMITTED)}


def test_no_place_is_left_out_that_may_have_the_job_of_a_damaged_intent(launched: Any) -> None:
    scene, again = launched
    scene.store.replace(scene.folder.event(scene.ids[0], 1, Event.INTENT), b"")
    scene.worker(scene.ids[1], 1, Event.SUCCEEDED)
    again(THERE, HERE)
    with pytest.raises(
        UsageError, match=r"unfinished runs were submitted to spare \(cluster one\)"
    ):
        again(HERE)
    with pytest.raises(UsageError, match="unfinished runs were submitted to fake"):
        again(THERE)


@pytest.fixture
def restarting() -> Iterator[None]:
    """`spare` starts what was preempted again by itself."""
    with _offered(None, fake=Capabilities(), spare=Capabilities(restarts=Counter("COUNT"))):
        yield


def test_a_place_that_refused_everything_may_be_left_out(launched: Any, restarting: None) -> None:
    """Only what was preempted, at a place that starts it again by itself, may wait there."""
    scene, again = launched
    first, second = scene.ids
    scene.worker(first, 1, Event.PREEMPTED)  # which was at `fake`
    again(THERE)
    again(HERE, THERE)
    scene.worker(second, 1, Event.PREEMPTED)
    with pytest.raises(UsageError, match="submitted to spare"):
        again(HERE)
    path = scene.folder.event(second, 1, Event.PREEMPTED)
    scene.store.replace(path, encode({"schema": 1, "reason": "withdrawn"}))
    again(HERE)


def test_places_are_on_record(pair: Any, tmp_path: Path) -> None:
    scene, *_ = pair(1)
    launch = scene.folder.read_plan().launch
    assert launch.backends == (Share("fake", 1), Share("spare"))
    assert scene.folder.read_plan().launch.document()["backends"] == BOTH
    assert "backends" not in Launch("local").document()
    document: Any = read_json(scene.store, scene.folder.plan)
    document["launch"]["backends"] = [{"backend": "fake", "max_parallel": 0}]
    scene.store.replace(scene.folder.plan, encode(document))
    with pytest.raises(StoreError, match=r"max_parallel: .*1 or more"):
        scene.folder.read_plan()
