"""Metrics files: how they are named, read, followed and kept as tables."""
