"""Never ends being imported."""

import time

import chz


@chz.chz
class Config:
    log_path: str
    rank: int = 1
    call: str = ""


while True:
    time.sleep(1)

if __name__ == "__main__":
    chz.nested_entrypoint(print)
