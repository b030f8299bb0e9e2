"""Drives a sweep: starts, monitors and retries its runs."""
