"""Errors that the engine returns to a client whose request cannot be executed."""


class RequestError(Exception):
    """An error in a client's request. The message says what to change."""


class Unknown(RequestError):
    """A session, run, sampler, checkpoint or model in a request does not exist."""


class Busy(RequestError):
    """A refusal because the engine is busy. The client should retry after `seconds`."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds
