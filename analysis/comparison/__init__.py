"""Compares cells: ranks, axes, blocks, items, episodes, tasks."""
