"""Small helpers that any layer may use: atomic writes, sanitising, decoding, HTML."""
