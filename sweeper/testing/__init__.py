"""Stand-ins for tests: ours, and those of anyone who writes a backend, a store or a recipe.

    faults = Faults({7: Fault.KILL_AFTER})
    store = FaultyStore(LocalStore(root), faults)
    backend = FaultyBackend(FakeBackend(), faults)
    clock = FakeClock()
    scheduler = Scheduler(Context(store, sweep, backend, clock, clock.sleep))
    with pytest.raises(Killed):
        scheduler.run()  # dies once its seventh call of store or backend has taken effect

With no fault set, `FaultyStore`, `FaultyBackend` and what they wrap pass the same contract suites
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
