"""`argparse`, imported without `gettext`. Otherwise argparse would search for translations of
its messages, which do not exist. The searches take 2 ms at each start."""

import sys
from types import ModuleType


def _gettext(message: str | None) -> str | None:
    return message  # None if a group has no description


def _ngettext(singular: str, plural: str, count: int) -> str:
    return singular if count == 1 else plural


def _untranslated() -> ModuleType:
    """Return a `gettext` module with only the functions that argparse uses."""
    module = ModuleType("gettext")
    vars(module).update(gettext=_gettext, ngettext=_ngettext)
    return module


if "gettext" in sys.modules:
    import argparse
else:
    sys.modules["gettext"] = _untranslated()
    try:
        import argparse
    finally:
        del sys.modules["gettext"]  # other modules get the real gettext

__all__ = ["argparse"]
