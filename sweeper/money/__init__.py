"""Prices of tokens."""
