"""Distributions, noise, comparisons and their power, without knowledge of sweeps."""
