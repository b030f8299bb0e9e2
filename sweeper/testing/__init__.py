"""Fakes and fault injection for tests, also for authors of backends, stores and recipes.

    faults = Faults({7: Fault.KILL_AFTER})
    store = FaultyStore(LocalStore(root), faults)
    backend = FaultyBackend(FakeBackend(), faults)
    clock = FakeClock()
    scheduler = Scheduler(Context(store, sweep, backend, clock, clock.sleep))
    with pytest.raises(Killed):
        scheduler.run()  # dies once its seventh call of store or backend has taken effect

Without faults, `FaultyStore`, `FaultyBackend` and what they wrap pass the same contract suites
(`tests/contract/`) as the real ones.
"""

from sweeper.testing.fakes import FAKE, FakeBackend, FakeClock
from sweeper.testing.faults import Fault, Faults, FaultyBackend, FaultyStore, Killed

__all__ = [
    "FAKE",
    "FakeBackend",
    "FakeClock",
    "Fault",
    "Faults",
    "FaultyBackend",
    "FaultyStore",
    "Killed",
]
