"""Reads small files of the kernel, as in /proc and /sys."""


def text_of(path: str) -> str:
    """Return the beginning of a file; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""
