"""What launchers and workers write to an S3 that fails at each request in turn: directly, and
through the process that they share."""

import json
from collections.abc import Callable
from typing import TypeVar

import pytest
from harness.s3_proxy import Fault, Proxy

from sweeper.errors import StoreError
from sweeper.store.base import Store
from sweeper.store.opening import open_store
from sweeper.store.shared import SharedStore, open_shared
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.run_table import RunTable
from sweeper.sweep.states import Event
from sweeper.worker import claim as claiming
from sweeper.worker.claim import claim
from sweeper.worker.heartbeat import Heartbeat, Requests

T = TypeVar("T")
RUNS = [f"{number:012x}" for number in range(3)]
_TRIES = 20


def _until_it_works(action: Callable[[], T]) -> T:
    """Return what `action` does, as a process does that repeats it while the store fails."""
    for _ in range(_TRIES):
        try:
            return action()
        except StoreError:
            continue
    raise AssertionError("the store never answered")


def _attempts_from_intent_to_claim(store: Store) -> None:
    """Open an attempt of each run at once, as a launcher does; then let two workers of each look
    for requests and claim it."""
    folder = SweepFolder(store, "toys")
    table = _until_it_works(lambda: RunTable(folder, folder.read_plan()))
    intents = {(run, 1): {"place": run} for run in RUNS}
    _until_it_works(lambda: table.add_each(Event.INTENT, intents))
    _until_it_works(lambda: table.add_each(Event.SUBMITTED, {key: {} for key in intents}))
    for run in RUNS:
        claims = [_until_it_works(lambda run=run: claim(folder, run, 1)) for _ in range(2)]
        assert claims == [True, False], run
        requests = Requests(folder, run, 1)
        assert not requests.look()
        assert not (requests.removed or requests.cancelled or requests.superseded)
        Heartbeat(folder, run, 1).write()


@pytest.mark.parametrize("kind", ["cut", "drop", "error", "slowdown"])
@pytest.mark.parametrize(("way", "apart"), [(open_store, 3), (open_shared, 9)])
def test_each_attempt_is_opened_and_claimed_once(
    s3_root: str,
    kind: str,
    way: Callable[[str], Store],
    apart: int,
    moto: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claiming, "_PAUSES", (0.01, 0.01, 0.01, 0.01))
    runs = [{"id": run, "name": run, "cell": run, "seed": None, "config": {}} for run in RUNS]
    plan = {"schema": 1, "name": "toys", "recipe": {}, "launch": {}, "runs": runs}
    index, struck = 1, True
    while struck:
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
        struck = any(request.struck for request in proxy.requests) and index < 29
        index += apart
    assert index > 25
