"""A place for files: a local folder, or a remote store that fsspec can reach."""
