"""Closes every descriptor while it is imported."""

import os

import chz


@chz.chz
class Config:
    log_path: str
    rank: int = 1
    call: str = ""


os.closerange(0, 100)
os._exit(0)

if __name__ == "__main__":
    chz.nested_entrypoint(print)
