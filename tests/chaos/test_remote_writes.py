"""Writes of launchers and workers to an S3 that fails at each request in turn: directly, and
through the process that they share."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import pytest
from harness.s3_proxy import FIRST, Fault, Proxy, apart

from sweeper.errors import StoreError
from sweeper.metrics.cache_folder import Folder
from sweeper.metrics.cached_contents import Contents
from sweeper.store.base import FarStore, Store
from sweeper.store.opening import open_store
from sweeper.store.shared import SharedStore, open_shared
from sweeper.store.snapshot import Snapshot
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.marks import Kind, put_mark
from sweeper.sweep.requests import request_retry
from sweeper.sweep.run_table import RunTable
from sweeper.sweep.settled import changing
from sweeper.sweep.states import Event
from sweeper.worker.claim import claim
from sweeper.worker.heartbeat import Heartbeat, Requests

T = TypeVar("T")
RUNS = [f"{number:012x}" for number in range(3)]
_TRIES = 20


def _until_it_works(action: Callable[[], T]) -> T:
    """Return the result of `action`, repeated while the store fails, as processes do it."""
    for _ in range(_TRIES):
        try:
            return action()
        except StoreError:
            continue
    raise AssertionError("the store never answered")


def _shortly(_: float) -> None:
    time.sleep(0.01)


def _attempts_from_intent_to_claim(store: Store) -> None:
    """Open an attempt of each run at once, as a launcher does; then let two workers of each look
    for requests and claim it."""
    folder = SweepFolder(store, "toys")
    table = _until_it_works(lambda: RunTable(folder, folder.read_plan()))
    intents = {(run, 1): {"place": run} for run in RUNS}
    _until_it_works(lambda: table.add_each(Event.INTENT, intents))
    _until_it_works(lambda: table.add_each(Event.SUBMITTED, {key: {} for key in intents}))
    for run in RUNS:
        claims = [_until_it_works(partial(claim, folder, run, 1, sleep=_shortly)) for _ in range(2)]
        assert claims == [True, False], run
        requests = Requests(folder, run, 1)
        assert not requests.check()
        assert not (requests.removed or requests.cancelled or requests.superseded)
        Heartbeat(folder, run, 1).write()


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("kind", ["cut", "drop", "error", "slowdown"])
@pytest.mark.parametrize(("way", "distance"), [(open_store, apart(3)), (open_shared, apart(9))])
def test_each_attempt_is_opened_and_claimed_once(
    s3_root: str,
    kind: str,
    first: int,
    way: Callable[[str], Store],
    distance: int,
    moto: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = [{"id": run, "name": run, "cell": run, "seed": None, "config": {}} for run in RUNS]
    plan = {"schema": 1, "name": "toys", "recipe": {}, "launch": {}, "runs": runs}
    index, strikes = first, list[int]()
    while index <= 29 and (not strikes or strikes[-1]):
        root = f"{s3_root}/{index}"
        near = SweepFolder(open_store(root), "toys")
        near.store.replace(near.plan, json.dumps(plan).encode())
        for run in RUNS:
            near.store.replace(near.job(run, 1), b"{}")
        proxy = Proxy(moto, Fault(kind, index, 4, 29))
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        store = way(root)
        _attempts_from_intent_to_claim(store)
        if isinstance(store, SharedStore):
            store.close()
        proxy.close()
        monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
        opened = {(1, Event.INTENT), (1, Event.SUBMITTED), (1, Event.CLAIMED)}
        assert near.read_events() == dict.fromkeys(RUNS, opened), index
        for run in RUNS:
            assert near.read_event(run, 1, Event.INTENT).place == run
        strikes.append(sum(request.struck for request in proxy.requests))
        index += distance
    print(f"\n{kind}: {len(strikes)} stories, {sum(strikes)} requests struck, none wrong")
    assert index > 25


def _settled(folder: SweepFolder) -> None:
    """Write a sweep that has ended."""
    folder.store.replace(folder.plan, b"{}")
    for name in ("1", "1.beat", "1.released"):
        folder.store.replace(f"{folder.launcher}/{name}", b"x")
    for run in RUNS:
        for event in (Event.CLAIMED, Event.FAILED):
            folder.store.create(folder.event(run, 1, event), b"{}")


def _retry_and_note(folder: SweepFolder) -> None:
    for number, run in enumerate(RUNS):
        with suppress(StoreError), changing(folder):
            request_retry(folder, run, {(1, Event.CLAIMED), (1, Event.FAILED)})
        with suppress(StoreError):
            put_mark(folder, Kind.NOTE, run, str(number))


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("kind", ["cut", "drop", "error", "slowdown", "late"])
def test_what_is_written_to_a_settled_sweep_is_shown(
    s3_root: str, kind: str, first: int, moto: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each request of retries and notes fails in turn. A reader that lists between and after them
    never shows an outdated listing."""
    index, last, strikes = first, first, list[int]()
    while index <= last:
        root = f"{s3_root}/{index}"
        near = open_store(root)
        _settled(SweepFolder(near, "toys"))
        cache = Folder(root, str(tmp_path / str(index)))

        def shown(near: Store = near, cache: Folder = cache) -> set[str]:
            return {
                entry.path for entry in Snapshot(cast(FarStore, near), Contents(cache)).list("toys")
            }

        proxy = Proxy(moto, Fault(kind, index, 4))
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        far = open_store(root)
        assert shown() == shown() == set(near.names("toys"))
        _retry_and_note(SweepFolder(far, "toys"))
        assert shown() == set(near.names("toys")), index
        proxy.close()
        monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
        time.sleep(1.5 if kind == "late" else 0.0)
        assert shown() == shown() == set(near.names("toys")), index
        strikes.append(sum(request.struck for request in proxy.requests))
        last = max(last, len(proxy.requests))
        index += apart(4)
    print(f"\n{kind}: {len(strikes)} stories, {sum(strikes)} requests struck, none wrong")
    assert last > 12
