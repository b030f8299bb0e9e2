"""Metrics files: their names, how they are read and followed, and how they are cached as tables."""
