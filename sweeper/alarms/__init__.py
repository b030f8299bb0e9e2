"""Detects problems of a run while it runs, by rules over its metrics, rollouts and heartbeats."""

from sweeper.alarms.records import Alarm, Name, alarms, names, read, read_action

__all__ = ["Alarm", "Name", "alarms", "names", "read", "read_action"]
