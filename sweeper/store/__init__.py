"""Stores of files: local folders, and remote stores that fsspec can reach."""
