"""Ends its interpreter while it is imported."""

import sys

import chz


@chz.chz
class Config:
    log_path: str
    rank: int = 1
    call: str = ""


sys.exit(0)

if __name__ == "__main__":
    chz.nested_entrypoint(print)
