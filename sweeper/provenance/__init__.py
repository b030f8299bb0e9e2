"""Where a sweep came from, and the code it runs."""
