"""Finds what is wrong with a run while it runs: rules over its metrics, rollouts and heartbeats."""

from sweeper.alarms.records import Alarm, Name, alarms, names, read, read_action

__all__ = ["Alarm", "Name", "alarms", "names", "read", "read_action"]
