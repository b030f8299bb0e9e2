"""The errors that the engine returns to a client whose request cannot be done."""


class RequestError(Exception):
    """The request cannot be done as it is. The message says what to change."""


class Unknown(RequestError):
    """There is no such session, run, sampler, checkpoint or model."""


class Busy(RequestError):
    """The engine is busy. The client is to retry after `seconds`."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds
