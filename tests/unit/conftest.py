"""A sweep on the fake backend, and other fixtures of unit tests."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, settings

from sweeper.backends import registered
from sweeper.backends.base import BackendType, Capabilities
from sweeper.cli import main
from sweeper.errors import GridError
from sweeper.fields import nodes
from sweeper.grid import parse_grid
from sweeper.grid.json_schema import grid_schema
from sweeper.launcher import launching, manifest
from sweeper.scheduler.context import Context
from sweeper.scheduler.loop import Scheduler
from sweeper.scheduler.progress import Summary
from sweeper.store.documents import encode, read_json
from sweeper.store.local import LocalStore
from sweeper.sweep import labels
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.launcher import held_of
from sweeper.sweep.states import Event, State
from sweeper.sweep.trust import sealed
from sweeper.testing import FAKE, FakeBackend, FakeClock, Faults, FaultyStore

# Examples take longer on a busy machine.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

LEASE = 60.0
WALL = 1_800_000_000.0
"""The start of the fake wall clock."""


class Scene:
    """A sweep of `runs` runs, its store, backend and clock; `worker` writes what workers would."""

    def __init__(self, root: Path, runs: int = 3, **launch: Any) -> None:
        self.store = LocalStore(str(root))
        self.folder = SweepFolder(self.store, "s")
        self.backend: Any = FakeBackend()
        self.clock = FakeClock()
        self.wall = WALL
        self.ids = [f"{index:012x}" for index in range(runs)]
        defaults = {
            "backend": "fake",
            "max_parallel": 2,
            "retries": 0,
            "timeout_s": None,
            "grace_s": 30,
            "lease_s": LEASE,
            "resume": "auto",
            "env": {},
        }
        plan = {
            "schema": 1,
            "name": "s",
            "launch": defaults | launch,
            "recipe": {"kind": "module", "python": "python3", "cwd": "/"},
            "secrets": [],
            "service": "none",
            "runs": [
                {"id": run, "name": f"x={n}", "cell": f"x={n}", "seed": None, "config": {"x": n}}
                for n, run in enumerate(self.ids)
            ],
        }
        self.store.replace(self.folder.plan, encode(plan))
        self.store.replace(self.folder.service, encode({"schema": 1, "env_file": None}))
        self.scheduler = self.new_scheduler()

    def new_scheduler(
        self,
        faults: Faults | Callable[[str], object] | None = None,
        *,
        remote: bool = False,
        sleep: Callable[[float], None] | None = None,
        **options: Any,
    ) -> Scheduler:
        """Return the scheduler of a new launcher, as after the last one was killed. Its store fails
        as `faults` decides; a function is called before each call, with its name and path."""
        context = Context(
            self.at(faults, remote=remote),
            self.backend,
            self.clock,
            sleep or self.clock.sleep,
            self.time_of_day,
        )
        return Scheduler(context, **options)

    def at(
        self, faults: Faults | Callable[[str], object] | None, *, remote: bool = False
    ) -> SweepFolder:
        """Return the sweep's folder in a store with these faults."""
        if faults is None and not remote:
            return self.folder
        if callable(faults):
            before = faults
            faults = Faults(lambda _, call: (before(call), None)[1])
        return self.folder.at(FaultyStore(self.store, faults or Faults(), remote=remote))

    def time_of_day(self) -> float:
        """Return the seconds since 1970 by the launcher's clock; a test sets `wall`."""
        return self.wall + self.clock.now

    def seal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Seal the plan as this user's."""
        monkeypatch.setenv("SWEEPER_IDENTITY", "of-this-test-only")
        plan = sealed(read_json(self.store, self.folder.plan))
        self.store.replace(self.folder.plan, encode(plan))

    def launch_to(self, *places: dict[str, str]) -> None:
        """Record a launch to these places. Raises `UsageError` if jobs may wait elsewhere."""
        plan = self.folder.read_plan()
        manifest.write_environment(self.folder, plan, None, Capabilities(), places)

    def offered(self) -> contextlib.AbstractContextManager[None]:
        """Let `open_backend("fake")` return the scene's backend."""
        return registered(BackendType("fake", "The scene's.", lambda *_: self.backend))

    def step(self, seconds: float = 0.5, times: int = 1) -> Summary:
        """Step the launcher, `seconds` after the last step; return the last summary."""
        for _ in range(times - 1):
            self.step(seconds)
        self.clock.sleep(seconds)
        return self.scheduler.step()

    def relaunch(self, *arguments: Any, **options: Any) -> Summary:
        """Step a new launcher, as after the last one was killed."""
        self.scheduler = self.new_scheduler(*arguments, **options)
        return self.step()

    def running(self) -> str:
        """Start the first run, and claim it as its worker does. Return its id."""
        self.step()
        self.worker(self.ids[0], 1, Event.CLAIMED)
        return self.ids[0]

    def worker(self, run: str, attempt: int, event: Event, **body: Any) -> None:
        self.store.create(self.folder.event(run, attempt, event), encode({"schema": 1} | body))

    def beat(self, run: str, attempt: int = 1, **body: Any) -> None:
        path = self.folder.heartbeat(run, attempt)
        self.store.replace(path, encode({"counter": self.clock.now} | body), durable=False)

    def log(self, run: str, text: str, attempt: int = 1) -> None:
        self.store.append(self.folder.log(run, attempt), text.encode())

    def observed(self) -> dict[str, Any]:
        """Return what the launcher has published, with its observations in words."""
        seen = self.folder.read_observations()
        words = {run: labels.observed(observation) for run, observation in seen.observed.items()}
        return {
            **read_json(self.store, self.folder.observations),
            "observed": words,
            "held": held_of(seen),
            "gave_up": False,
        }

    def events(self, run: str) -> set[tuple[int, Event]]:
        return self.folder.read_events().get(run, set())

    def states(self) -> list[State]:
        states = self.folder.read_states()
        return [states[run].state if run in states else State.PLANNED for run in self.ids]

    def finish(
        self, run: str, attempt: int = 1, event: Event = Event.SUCCEEDED, **body: Any
    ) -> None:
        """Record an attempt from its claim to its end, and end its job."""
        self.worker(run, attempt, Event.CLAIMED)
        self.worker(run, attempt, event, **body)
        places = self.backend.values() if isinstance(self.backend, dict) else ()
        with_job = [place for place in places if token(run, attempt) in getattr(place, "jobs", ())]
        for backend in with_job if places else [self.backend]:
            backend.end(token(run, attempt))


class GridReaders:
    """The two readers of grids, which must agree: sweeper's, and the JSON Schema for editors."""

    def __init__(self) -> None:
        self._validator = jsonschema.Draft202012Validator(grid_schema())

    def take(self, text: str) -> None:
        """Assert that both accept a grid."""
        parse_grid(text, "g.yaml")
        self._validator.validate(self._data(text))

    def refuse(self, text: str) -> str:
        """Assert that both refuse a grid; return sweeper's message."""
        with pytest.raises(GridError) as caught:
            parse_grid(text, "g.yaml")
        assert not self._validator.is_valid(self._data(text))
        return str(caught.value)

    @staticmethod
    def _data(text: str) -> Any:
        root = nodes.read_yaml(text, "g.yaml", nodes.Problems())
        assert root is not None
        return nodes.plain(root)


@pytest.fixture(scope="session")
def grid_readers() -> GridReaders:
    return GridReaders()


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip `fsync`: no test here cuts the power, and disks are slow."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set: files whose path contains one of its texts cannot be opened."""
    parts: set[str] = set()
    open_file = os.open

    def opens(path: Any, *rest: Any, **more: Any) -> int:
        if any(part in str(path) for part in parts):
            raise PermissionError(13, "not for you")
        return open_file(path, *rest, **more)

    monkeypatch.setattr(os, "open", opens)
    return parts


@pytest.fixture
def make_scene(tmp_path: Path, no_sync: None, fake_backend: None) -> Callable[..., Scene]:
    """Return a function that makes a scene, given the number of runs and launch options."""
    return lambda runs=3, **launch: Scene(tmp_path, runs, **launch)


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the sweeps whose launchers would be started; no process starts."""
    names: list[str] = []
    monkeypatch.setattr(launching, "resume", lambda folder, **_: names.append(folder.name))
    return names


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty `SWEEPER_HOME`, the folder for sweeper's own files on a machine."""
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the user's `config.toml`, which does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "sweeper").mkdir(parents=True)
    return tmp_path / "config" / "sweeper" / "config.toml"


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Return a function that runs a verb with `--json` and returns the document that it prints."""

    def run(*words: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main([*words, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def fake_backend() -> Iterator[None]:
    """Let plans name the backend `fake`, which executes nothing."""
    with registered(FAKE):
        yield


@pytest.fixture
def scene(tmp_path: Path, no_sync: None, fake_backend: None) -> Scene:
    """Return a scene of three runs, two at once."""
    return Scene(tmp_path)


@pytest.fixture
def pair(
    make_scene: Callable[..., Any],
) -> Iterator[Callable[..., tuple[Any, FakeBackend, FakeBackend]]]:
    """Yield `pair(runs, **launch)`: a scene at places `fake` (one job) and `spare`, and both."""

    def make(runs: int = 3, **launch: Any) -> tuple[Any, FakeBackend, FakeBackend]:
        shares = [
            {"backend": "fake", "max_parallel": 1},
            {"backend": "spare", "max_parallel": None},
        ]
        given = {"backend": "fake+spare", "backends": shares, "max_parallel": 3} | launch
        scene = make_scene(runs, **given)
        fake, spare = FakeBackend(), FakeBackend()
        scene.backend = {"fake": fake, "spare": spare}
        scene.scheduler = scene.new_scheduler()
        return scene, fake, spare

    with registered(FAKE._replace(name="spare")):
        yield make


@pytest.fixture
def make_watched() -> Callable[[Scene], Any]:
    """Return the class in `tests/support/watched.py` for how `sweeper watch` sees a scene."""
    from support.watched import Watched

    return Watched


@pytest.fixture
def watched(make_watched: Callable[[Scene], Any], scene: Scene) -> Any:
    return make_watched(scene)


@pytest.fixture(scope="session")
def botocore_session() -> Any:
    import botocore.session

    return botocore.session.Session()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the engine's models, made once."""
    from sweeper.engine.models import Models

    return Models(str(tmp_path_factory.mktemp("models")))


@pytest.fixture
def stubbed(botocore_session: Any, tmp_path: Path) -> Iterator[Any]:
    """Yield an AWS that gives the test's answers; all must be used: see `support/aws_stubs.py`."""
    from support.aws_stubs import Stubbed

    stubbed = Stubbed(tmp_path, botocore_session)
    yield stubbed
    stubbed.done()
