"""A place for files: a local folder, or any address that fsspec knows."""
