"""Drives a sweep: starts runs, follows them, retries them."""
