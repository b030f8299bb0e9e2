"""Errors that the engine returns to a client whose request cannot be executed."""


class RequestError(Exception):
    """The request cannot be executed as sent. The message says what to change."""


class Unknown(RequestError):
    """A session, run, sampler, checkpoint or model does not exist."""


class Busy(RequestError):
    """The engine is busy. The client should retry after `seconds`."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds
