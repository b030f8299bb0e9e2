"""Prints more than a pipe holds while it is imported, also to where the answer goes."""

import os

import chz

print("x" * 200_000)
os.write(1, b"{}" * 100_000)


@chz.chz
class Config:
    log_path: str
    rank: int = 1
    call: str = ""


if __name__ == "__main__":
    chz.nested_entrypoint(print)
