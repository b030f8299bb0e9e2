"""From a grid to a plan."""
