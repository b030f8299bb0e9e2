"""What is wrong with a run while it runs: one rule engine over metrics, rollouts, heartbeats."""

from sweeper.monitor.records import Alarm, Name, alarms, names, read, read_action

__all__ = ["Alarm", "Name", "alarms", "names", "read", "read_action"]
