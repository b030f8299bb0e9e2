"""Two config classes."""

import chz


@chz.chz
class Config:
    log_path: str
    rank: int = 1
    call: str = ""


@chz.chz
class Other:
    log_path: str


if __name__ == "__main__":
    chz.nested_entrypoint(print)
