"""The store: keeps files, and knows where each lies."""
