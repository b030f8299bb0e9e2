"""Records the origin of a sweep and the code that it runs."""
