"""Detects problems of runs while they are running. Rules judge metrics, rollouts and heartbeats."""

from sweeper.alarms.records import Alarm, Name, alarms, names, read, read_action

__all__ = ["Alarm", "Name", "alarms", "names", "read", "read_action"]
