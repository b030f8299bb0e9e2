"""Fakes and fault injection for tests, also for authors of backends, stores and recipes. Without
faults, `FaultyStore` and `FaultyBackend` pass the same contract suites as the real ones."""

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
