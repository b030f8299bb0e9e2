"""Records the sweep of a plan and starts its launcher."""
