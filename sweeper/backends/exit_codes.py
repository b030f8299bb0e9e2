"""Exit codes of jobs in containers."""

__all__ = ["of_process"]

_SIGNALS = range(129, 193)


def of_process(code: int) -> int:
    """The same as Python has it: -9 where a container tells of signal 9 by 137. A code beyond all
    signals (255) is the program's own."""
    return 128 - code if code in _SIGNALS else code
