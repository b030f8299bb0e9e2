"""Episodes as traces for an OpenTelemetry collector: of a run while it trains, or of recorded
ones."""

from sweeper.telemetry.live import Telemetry, check_collector

__all__ = ["Telemetry", "check_collector"]
