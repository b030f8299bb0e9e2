"""What the engine answers a client that asked for something it cannot have."""

__all__ = ["Busy", "RequestError", "Unknown"]


class RequestError(Exception):
    """The request cannot be done as it stands; the message says what to change."""


class Unknown(RequestError):
    """There is no such session, run, sampler, checkpoint or model."""


class Busy(RequestError):
    """Not now: the client is to come back after `seconds`."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds
