"""What the engine answers a client that asked for something it cannot have."""

__all__ = ["RequestError", "Unknown"]


class RequestError(Exception):
    """The request cannot be done as it stands; the message says what to change."""


class Unknown(RequestError):
    """There is no such session, run, sampler, checkpoint or model."""
