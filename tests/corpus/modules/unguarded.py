"""Would do nothing as a program."""

import chz


@chz.chz
class Config:
    log_path: str
    rank: int = 1
    call: str = ""
