"""Reads recorded results of runs, and selects the runs that a user means."""
