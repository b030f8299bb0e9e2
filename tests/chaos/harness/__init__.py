"""Shared parts of the chaos tests and their programs."""
