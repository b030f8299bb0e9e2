"""Finds, checks and runs recipes, in the interpreters that they need."""
