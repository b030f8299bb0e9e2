"""The models that a model service offers."""

import re
from typing import Annotated, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import Default
from sweeper.errors import EnvironmentFailure, StoreError
from sweeper.results.service_requests import Service

_BILLIONS = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)B\b", re.IGNORECASE)


class Model(NamedTuple):
    """A model: its name, the longest context in tokens (None if unknown), and its capabilities."""

    model_name: str
    max_context_length: int | None = None
    trainable: bool | None = None
    sampleable: bool | None = None

    @property
    def billions(self) -> float:
        """The number of parameters in billions, read from the name; 0 if the name does not contain
        this number."""
        sizes = [float(size) for size in _BILLIONS.findall(self.model_name)]
        return max(sizes, default=0.0)


class _Answer(NamedTuple):
    supported_models: Annotated[tuple[Model, ...], Default(())]


def offered(service: Service, seconds: float | None = None) -> tuple[Model, ...]:
    """Return the models that a service offers. Raises `EnvironmentFailure` if the service refuses
    or does not answer within `seconds`."""
    document = service.ask("get_server_capabilities", "models", seconds=seconds)
    try:
        return codec.read(_Answer, document, service.url).supported_models
    except StoreError as error:
        raise EnvironmentFailure(str(error)) from error


def smallest(models: tuple[Model, ...]) -> Model | None:
    """Return the smallest model that can be trained and sampled; None if there is no such model."""
    usable = [m for m in models if m.trainable is not False and m.sampleable is not False]
    return min(usable, key=lambda model: (model.billions, len(model.model_name)), default=None)
