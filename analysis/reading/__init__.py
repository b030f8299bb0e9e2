"""Reads the runs of a sweep and what they recorded."""
