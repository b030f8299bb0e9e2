"""Small helpers for all layers: atomic writes, sanitising, decoding, HTML."""
