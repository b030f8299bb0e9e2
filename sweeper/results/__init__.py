"""Reading back what runs recorded: what they are judged by, and which of them are meant."""
