"""Needs what is not there."""

import chz
import no_such_module_anywhere  # noqa: F401

if __name__ == "__main__":
    chz.nested_entrypoint(print)
