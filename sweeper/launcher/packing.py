"""Packs the small files of a sweep on a remote store when it has ended, so that readers open it by
few requests (`sweeper.store.packed`)."""

from collections.abc import Mapping
from types import MappingProxyType

from sweeper.common.logs import Log
from sweeper.errors import StoreError
from sweeper.metrics.files import NAMES
from sweeper.store.base import Entry, FarStore
from sweeper.store.packed import pack
from sweeper.store.snapshot import Snapshot
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import ENDED, Event, parse_name

_LOG = Log(__name__)
_NONE: Mapping[str, bytes] = MappingProxyType({})
_EVENTS = ENDED | {Event.LOST}


def pack_results(folder: SweepFolder, outcomes: Mapping[str, bytes] = _NONE) -> None:
    """Pack the outcomes, alarms and small metrics files of a sweep on a remote store. `outcomes`
    have been read already. If the store does not answer, readers need more requests."""
    if not isinstance(folder.store, FarStore):
        return
    snapshot = Snapshot(folder.store)
    try:
        entries = [entry for entry in snapshot.list(folder.name) if _is_result(folder, entry)]
        pack(snapshot, folder.name, entries, lambda path: outcomes.get(path) or snapshot.read(path))
    except StoreError as error:
        _LOG.info("results are not packed: %s", error)


def _is_result(folder: SweepFolder, entry: Entry) -> bool:
    parent, _, name = entry.path.rpartition("/")
    if entry.path.startswith(f"{folder.state}/"):
        event = parse_name(name)
        return event is not None and event[1] in _EVENTS
    return parent == folder.alarms or (parent.startswith(f"{folder.runs}/") and name in NAMES)
