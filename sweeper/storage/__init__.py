"""Files that are kept, and what lies where."""
