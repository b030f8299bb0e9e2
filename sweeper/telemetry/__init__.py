"""Sends episodes as traces to an OpenTelemetry collector, while a run trains or after it was
recorded."""

from sweeper.telemetry.live import Telemetry, check_collector

__all__ = ["Telemetry", "check_collector"]
