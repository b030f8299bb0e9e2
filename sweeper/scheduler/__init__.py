"""Drives a sweep: what is to run, what does, and what is to be started next."""
