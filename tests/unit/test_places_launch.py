"""Launching a sweep at several places: the grid, the record, and places that cannot be opened."""

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
from sweeper.launcher import launching, preflight
from sweeper.launcher.placement_guard import refuse_moved_sweep
from sweeper.planner.plan import plan
from sweeper.store.documents import encode, read_json
from sweeper.sweep.folder import token
from sweeper.sweep.launch_settings import Launch, Share
from sweeper.sweep.states import Event, State
from sweeper.testing import FAKE, FakeBackend, FakeClock

BOTH = [{"backend": "fake", "max_parallel": 1}, {"backend": "spare", "max_parallel": None}]


@contextmanager
def _offered(
    opened: Callable[[str], FakeBackend] | None, *names: str, **capable: Any
) -> Iterator[None]:
    """Register backends of these names, opened by `opened`, or with these capabilities."""
    with ExitStack() as all_of_them:
        for name in (*names, *capable):
            kind = FAKE._replace(name=name)
            if opened is not None:
                kind = kind._replace(open=lambda *_, name=name: opened(name))
            if name in capable:
                kind = kind._replace(capabilities=lambda _, name=name: capable[name])
            all_of_them.enter_context(registered(kind))
        yield


HERE, THERE = {"backend": "fake"}, {"backend": "spare", "cluster": "one"}


@pytest.fixture
def launched(pair: Any, home: Path) -> tuple[Any, Callable[..., None]]:
    """Return a sweep with jobs at both places, and a function that launches it elsewhere."""
    scene, *_ = pair(2)
    scene.launch_to(HERE, THERE)
    scene.step()
    return scene, scene.launch_to


def test_places_may_be_added_and_change_their_order(launched: Any) -> None:
    scene, again = launched
    again(THERE, {"backend": "third"}, HERE)
    assert scene.folder.read_service().places == (THERE, {"backend": "third"}, HERE)
    # An older version reads only `place`; this value equals none of its places.
    assert read_json(scene.store, scene.folder.service)["place"] == {"backend": "fake+spare"}


def test_a_launch_without_a_place_that_has_jobs_is_refused(launched: Any) -> None:
    scene, again = launched
    message = r"submitted to spare \(cluster one\), and a launch to fake would .*: x=1"
    with pytest.raises(UsageError, match=message):
        again(HERE)
    with pytest.raises(UsageError, match=r"to fake and spare \(cluster two\) would"):
        again(HERE, THERE | {"cluster": "two"})
    scene.worker(scene.ids[1], 1, Event.SUCCEEDED)
    again(HERE)


def test_attempts_without_a_place_on_record_are_at_the_first(launched: Any) -> None:
    """An older version launched the sweep to a single place."""
    scene, _ = launched
    before = {"schema": 1, "env_file": "environment.json", "place": HERE}
    scene.store.replace(scene.folder.service, encode(before))
    for run in scene.ids:
        scene.store.replace(scene.folder.event(run, 1, Event.INTENT), encode({"schema": 1}))
    refuse_moved_sweep(scene.folder, [HERE])
    refuse_moved_sweep(scene.folder, [HERE, THERE])
    with pytest.raises(UsageError, match="unfinished runs were submitted to fake"):
        refuse_moved_sweep(scene.folder, [THERE, HERE])


def test_capabilities_of_several_places_are_combined() -> None:
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


def test_each_place_that_cannot_read_the_root_is_named(scene: Any) -> None:
    options = {"aws_batch": {"queue": "q", "image": "i"}, "kubernetes": {"image": "i"}}
    shares = tuple(map(Share, ("local", "aws-batch", "kubernetes")))
    launch = Launch("all", backends=shares, options=options)
    with pytest.raises(GridError) as caught:
        preflight.admit(launch, scene.store, "none", (), live=False)
    assert [line.partition(":")[0] for line in caught.value.problems] == ["aws-batch", "kubernetes"]
    assert all("cannot read the folder" in line for line in caught.value.problems)


@pytest.fixture
def failures() -> Iterator[dict[str, EnvironmentFailure]]:
    """Yield the errors that opening `fake` and `spare` raises."""
    failures: dict[str, EnvironmentFailure] = {}

    def opened(name: str) -> FakeBackend:
        if name in failures:
            raise failures[name]
        return FakeBackend()

    with _offered(opened, "fake", "spare"):
        yield failures


def test_a_place_that_cannot_be_opened_is_unreachable(failures: Any) -> None:
    failures["spare"] = EnvironmentFailure("there is no spare here")
    launch = Launch("fake+spare", backends=(Share("fake"), Share("spare")))
    with pytest.raises(EnvironmentFailure, match="no spare"):
        open_places(launch, "s", "/s")
    places = open_places(launch, "s", "/s", any_place=True)
    assert places["fake"].poll([]) == {}
    for ask in (places["spare"].poll, places["spare"].find, places["spare"].cancel):
        with pytest.raises(Unreachable, match="no spare"):
            ask([])
    with pytest.raises(EnvironmentFailure, match="no spare"):
        open_places(Launch("spare"), "s", "/s", any_place=True)


def test_a_launch_tolerates_silent_places_but_not_refusals(failures: Any) -> None:
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


def test_opening_a_place_is_tried_again() -> None:
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


def test_runs_start_elsewhere_while_a_place_cannot_be_opened(pair: Any) -> None:
    scene, fake, spare = pair(2)
    away = Away("fake", lambda: fake, "there is no fake", scene.clock)
    scene.backend = {"fake": away, "spare": spare}
    scene.relaunch()
    assert spare.submitted == [token(run, 1) for run in scene.ids]
    scene.finish(scene.ids[0], 1, Event.PREEMPTED)
    scene.step(60.0)
    assert fake.submitted == [token(scene.ids[0], 2)]


@pytest.fixture
def fake_is_away(pair: Any, failures: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Return this user's sweep at two places, and the errors that opening them raises."""
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
    # The record of the place is unchanged.
    assert service.places[0] == {"backend": "fake", "cluster": "one"}
    scene.worker(scene.ids[0], 1, Event.SUCCEEDED)
    assert launching.drive(scene.folder.address, lambda _: None).counts[State.SUCCEEDED] == 1
    failures["spare"] = EnvironmentFailure("there is no spare here")
    for go_on in (launching.ready, lambda folder: launching.drive(folder.address, print)):
        with pytest.raises(EnvironmentFailure, match="no fake here; there is no spare here"):
            go_on(scene.folder)


def test_a_place_whose_location_changed_is_not_asked(fake_is_away: Any) -> None:
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
def test_a_grid_lists_its_places_with_their_shares(
    text: str, shares: tuple[int | None, int | None], most: int
) -> None:
    launch, wrong = _read(f"{{backends: {text}}}")
    assert not wrong
    assert launch.backends == (Share("local", shares[0]), Share("slurm", shares[1]))
    assert (launch.backend, launch.places) == ("local+slurm", ("local", "slurm"))
    assert launch.max_parallel == most
    given = {"partition": "spot"} if "spot" in text else None
    assert launch.options.get("slurm") == given


def test_a_list_of_one_place_is_a_plain_backend() -> None:
    launch, wrong = _read("{backends: [{slurm: {partition: spot, max_parallel: 3}}]}")
    assert not wrong
    assert launch == Launch("slurm", max_parallel=3, options={"slurm": {"partition": "spot"}})
    assert launch.places == ("slurm",)


def test_an_override_replaces_the_list_of_places() -> None:
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
        ("{backends: [local, slrum]}", "launch.backends[1]: no backend 'slrum': use aws-batch"),
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
            "launch.slurm: write these options into",
        ),
        ("{backends: []}", "launch.backends is an empty list; it takes a list of backends: NAME"),
        ("{backends: local}", "launch.backends is a string; it takes a list of backends: NAME"),
        (
            "{backends: [{local: {max_parallel: 0}}]}",
            "launch.backends[0].local.max_parallel must be 1 to",
        ),
        (
            "{backends: [{a: 1, b: 2}]}",
            "launch.backends[0] is a mapping; it takes one backend: NAME",
        ),
    ],
)
def test_a_mistake_in_the_list_of_places_is_one_line(text: str, line: str) -> None:
    _, wrong = _read(text)
    assert len(wrong) == 1
    assert line in wrong[0]
    assert wrong[0].startswith("grid.yaml:1:")


def test_places_that_may_have_the_job_of_a_damaged_intent_must_stay(launched: Any) -> None:
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
    """Let `spare` restart preempted jobs itself."""
    with _offered(None, fake=Capabilities(), spare=Capabilities(restarts=Counter("COUNT"))):
        yield


def test_a_place_without_waiting_jobs_may_be_left_out(launched: Any, restarting: None) -> None:
    """Preempted runs have a waiting job only at a place that restarts jobs itself."""
    scene, again = launched
    first, second = scene.ids
    scene.worker(first, 1, Event.PREEMPTED)  # its place is `fake`
    again(THERE)
    again(HERE, THERE)
    scene.worker(second, 1, Event.PREEMPTED)
    with pytest.raises(UsageError, match="submitted to spare"):
        again(HERE)
    path = scene.folder.event(second, 1, Event.PREEMPTED)
    scene.store.replace(path, encode({"schema": 1, "reason": "withdrawn"}))
    again(HERE)


def test_a_plan_records_its_places(pair: Any, tmp_path: Path) -> None:
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
