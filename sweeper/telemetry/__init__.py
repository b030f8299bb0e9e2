"""Sends episodes as traces to an OpenTelemetry collector, while a run trains or afterwards."""

from sweeper.telemetry.live import Telemetry, check_collector

__all__ = ["Telemetry", "check_collector"]
