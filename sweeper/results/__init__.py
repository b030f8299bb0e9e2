"""Read back what runs recorded: what they are judged by, and which runs a user means."""
