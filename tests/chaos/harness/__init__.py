"""What the chaos tests, and the programs beside them, have in common."""
