"""Turns a plan into a sweep on record, and starts its launcher."""
