"""The engine's state in memory: sessions, their training runs and their samplers."""

import collections
import contextlib
import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from sweeper.engine.array_types import Arrays
from sweeper.engine.errors import Unknown
from sweeper.engine.lora import LoraConfig, merge
from sweeper.engine.models import Model
from sweeper.engine.net import Network
from sweeper.engine.optimizer import Moments
from sweeper.engine.scheduler import Lane

NETWORKS = 64
# Samplers kept per session; the least recently used is dropped first. A loop that makes a sampler
# at every step must not fill the memory or the disk.
SAMPLERS_IN_MEMORY, SAMPLERS = 16, 256
IDLE_SECONDS = 1800.0  # a client sends a heartbeat every 10 s
PAST = 1000  # how many ended sessions, and ended training runs, are listed
_LISTED = 100  # how many samplers an ended session lists


class Adapter:
    """An immutable adapter, and the network with the adapter merged into the base model. A network
    is several times larger than its adapter, so only the most recently used networks are kept. The
    arrays can be moved to a file."""

    _recent: ClassVar["collections.OrderedDict[int, Adapter]"] = collections.OrderedDict()
    _lock: ClassVar[threading.Lock] = threading.Lock()
    _serials: ClassVar["itertools.count[int]"] = itertools.count(1)

    def __init__(self, model: Model, config: LoraConfig, arrays: Arrays) -> None:
        self.model, self.config = model, config
        self.serial = next(self._serials)
        """The id for caches, which is never reused."""
        self._arrays: Arrays | None = arrays
        self._file = ""
        self._network: Network | None = None

    @property
    def arrays(self) -> Arrays:
        """The adapter's arrays, read from their file if they were moved there."""
        arrays = self._arrays
        if arrays is None:
            with np.load(self._file, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        return arrays

    def snapshot(self) -> "Adapter":
        """Return the same adapter as a separate object, which can be moved to a file."""
        return Adapter(self.model, self.config, self.arrays)

    def spill(self, path: str) -> None:
        """Move the arrays to a file. Does nothing if no arrays are in memory."""
        if not self._arrays:
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            np.savez(file, allow_pickle=False, **self._arrays)
        self._file, self._arrays = path, None
        with self._lock:
            self._network = None
            self._recent.pop(id(self), None)

    @property
    def network(self) -> Network:
        """The base model with the adapter merged in; computed if not in memory."""
        network = self._network
        if network is None:
            model, scale = self.model, self.config.scale
            network = merge(model.base, model.shape, model.rotation, self.arrays, scale)
        with self._lock:
            self._network = network
            self._recent[id(self)] = self
            self._recent.move_to_end(id(self))
            if len(self._recent) > NETWORKS:
                self._recent.popitem(last=False)[1]._network = None
        return network


class RunSummary(NamedTuple):
    """What listings show about a training run, also after its session has ended. `used` is the time
    of the last use in Unix seconds."""

    base: str
    rank: int
    user_metadata: dict[str, object] | None
    used: float


@dataclass
class Run:
    """A training client: an adapter in training, its accumulated gradients, and its optimizer."""

    id: str
    adapter: Adapter
    user_metadata: dict[str, object] | None = None
    moments: Moments = field(default_factory=lambda: Moments({}, {}, 0))
    gradients: Arrays = field(default_factory=Arrays)
    lane: Lane = field(default_factory=lambda: Lane(ordered=True))
    used: float = field(default_factory=time.time)

    @property
    def summary(self) -> RunSummary:
        """The facts that listings show."""
        adapter = self.adapter
        return RunSummary(adapter.model.name, adapter.config.rank, self.user_metadata, self.used)


class Sampler(NamedTuple):
    """The weights of a sampling client. `path` is the checkpoint from which the weights were
    loaded; None for a base model, or for a snapshot of a training client."""

    id: str
    adapter: Adapter
    path: str | None
    lane: Lane


@dataclass
class Session:
    """A session of the SDK: one client process. `started` is in Unix seconds. `status` describes
    how the session ended, in the protocol's form. It is None if the session is open, or if the
    client did not report the end."""

    id: str
    tags: list[str]
    user_metadata: dict[str, object] | None
    display_name: str | None
    runs: list[str] = field(default_factory=list[str])
    samplers: list[str] = field(default_factory=list[str])
    last_heard: float = field(default_factory=time.monotonic)
    started: float = field(default_factory=time.time)
    status: Mapping[str, object] | None = None


class Registry:
    """All sessions, training clients and samplers by id. Thread-safe. A session keeps at most
    `SAMPLERS` samplers."""

    def __init__(
        self, spill: str, on_drop: Callable[[Lane], None], on_idle: Callable[[Adapter], None]
    ) -> None:
        """Set the callbacks. `on_drop` gets the lane of each removed training client, and of each
        sampler whose session has ended. `on_idle` gets the adapter of each sampler that is moved to
        disk or removed."""
        self._lock = threading.Lock()
        self._spill, self._on_drop, self._on_idle = spill, on_drop, on_idle
        shutil.rmtree(spill, ignore_errors=True)  # left by an engine that crashed
        self._sessions: dict[str, Session] = {}
        self._runs: dict[str, Run] = {}
        self._past: collections.OrderedDict[str, Session] = collections.OrderedDict()
        self._past_runs: collections.OrderedDict[str, RunSummary] = collections.OrderedDict()
        self._samplers: dict[str, collections.OrderedDict[str, Sampler]] = {}

    def add_session(self, session: Session) -> None:
        """Open a session."""
        with self._lock:
            self._sessions[session.id] = session
            self._samplers[session.id] = collections.OrderedDict()

    def session(self, name: str) -> Session:
        """Return a session, and record that its client is alive. Raises Unknown if there is no such
        session."""
        session = self._sessions.get(name)
        if session is None:
            raise Unknown(f"there is no session {name}: it ended, or the engine was restarted")
        session.last_heard = time.monotonic()
        return session

    def sessions(self) -> list[Session]:
        """Return all open sessions, newest first."""
        with self._lock:
            return list(self._sessions.values())[::-1]

    def all_sessions(self) -> list[Session]:
        """Return all open sessions, newest first, then the last `PAST` ended sessions, most
        recently ended first."""
        with self._lock:
            return [*reversed(self._sessions.values()), *reversed(self._past.values())]

    def past_runs(self) -> dict[str, RunSummary]:
        """Return the last `PAST` removed training runs by id, most recently removed first."""
        with self._lock:
            return dict(reversed(self._past_runs.items()))

    def add_run(self, session: str, run: Run) -> None:
        """Add a training client to its session."""
        with self._lock:
            if session not in self._sessions:
                raise Unknown(f"there is no session {session}: it ended")
            self._runs[run.id] = run
            if run.id not in self._sessions[session].runs:
                self._sessions[session].runs.append(run.id)

    def run(self, name: str) -> Run:
        """Return a training client. Raises Unknown if there is no such client."""
        run = self._runs.get(name)
        if run is None:
            raise Unknown(f"there is no training client {name}: its session ended, or the engine "
                          "was restarted")  # fmt: skip
        run.used = time.time()
        return run

    def runs(self) -> list[Run]:
        """Return all training clients, newest first."""
        with self._lock:
            return list(self._runs.values())[::-1]

    def add_sampler(self, session: str, sampler: Sampler) -> None:
        """Add a sampler. If the session has more than `SAMPLERS_IN_MEMORY` samplers, the least
        recently used ones are moved to disk. If it has more than `SAMPLERS`, the least recently
        used one is dropped."""
        with self._lock:
            if session not in self._sessions:
                raise Unknown(f"there is no session {session}: it ended")
            held = self._samplers[session]
            held[sampler.id] = sampler
            self._sessions[session].samplers.append(sampler.id)
            del self._sessions[session].samplers[:-1000]
            dropped = held.popitem(last=False)[1] if len(held) > SAMPLERS else None
            old = list(held.values())[: max(0, len(held) - SAMPLERS_IN_MEMORY)]
        for idle in old:
            idle.adapter.spill(self._file_of(idle.id))
            self._on_idle(idle.adapter)
        if dropped is not None:
            self._on_idle(dropped.adapter)
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._file_of(dropped.id))

    def _file_of(self, sampler: str) -> str:
        session, _, number = sampler.rpartition(":sample:")
        return os.path.join(self._spill, session, f"{number}.npz")

    def sampler(self, name: str) -> Sampler:
        """Return a sampler, and mark it as used. Raises Unknown if there is no such sampler."""
        session = name.rpartition(":sample:")[0]
        with self._lock:
            held = self._samplers.get(session)
            if held is None or name not in held:
                raise Unknown(
                    f"there is no sampler {name}: a session keeps only the {SAMPLERS} "
                    "samplers that it used last. To keep weights longer, save them under a name"
                )
            held.move_to_end(name)
            return held[name]

    def drop_run(self, name: str) -> None:
        """Remove a training client and its waiting requests. The client's checkpoints stay."""
        with self._lock:
            run = self._runs.pop(name, None)
            if run is not None:
                self._past_runs[name] = run.summary
                while len(self._past_runs) > PAST:
                    self._past_runs.popitem(last=False)
        if run is not None:
            self._on_drop(run.lane)

    def end(self, name: str, status: Mapping[str, object] | None = None) -> None:
        """End a session: remove its training clients and samplers. The checkpoints of the session
        stay."""
        with self._lock:
            session = self._sessions.pop(name, None)
            if session is not None:
                session.status = status
                del session.samplers[:-_LISTED]
                self._past[name] = session
                while len(self._past) > PAST:
                    self._past.popitem(last=False)
            samplers = self._samplers.pop(name, None) or collections.OrderedDict[str, Sampler]()
        for run in session.runs if session else ():
            self.drop_run(run)
        for sampler in samplers.values():
            self._on_drop(sampler.lane)
            self._on_idle(sampler.adapter)
        shutil.rmtree(os.path.join(self._spill, name), ignore_errors=True)

    def idle_sessions(self, seconds: float) -> list[str]:
        """Return the ids of the sessions whose clients have sent nothing for more than
        `seconds`."""
        now = time.monotonic()
        return [session.id for session in self.sessions() if now - session.last_heard > seconds]

    def sweep(self, idle: float = IDLE_SECONDS) -> list[str]:
        """End the sessions whose clients have sent nothing for `idle` seconds. Return their ids."""
        gone = self.idle_sessions(idle)
        for name in gone:
            self.end(name)
        return gone
