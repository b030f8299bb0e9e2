"""Metrics and rollouts as columns of numbers: parsed, merged, cached, and queried with SQL."""
