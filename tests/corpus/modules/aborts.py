"""Is killed while it is imported."""

import os
import signal

import chz


@chz.chz
class Config:
    log_path: str
    rank: int = 1
    call: str = ""


os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    chz.nested_entrypoint(print)
