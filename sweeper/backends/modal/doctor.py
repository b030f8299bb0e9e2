"""Checks Modal before the first job: the account, the app, the image and the secrets. The check of
the image makes Modal fetch the image."""

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from sweeper.backends.base import Check
from sweeper.backends.container_jobs import require_digest
from sweeper.backends.modal.client import Method, Refused, Service, official
from sweeper.backends.modal.options import Options
from sweeper.backends.modal.spec import required

if TYPE_CHECKING:
    from modal import App, Client

_BUILD_SECONDS = 900.0
"""Seconds that a check waits while Modal fetches an image that it does not have yet."""


def checks(options: Options, service: Service | None = None) -> list[Check]:
    """Return the checks of `sweeper doctor --backend modal`. A launch also runs the checks whose
    field `needed` is true."""

    @functools.cache
    def connected() -> Service:
        if service is not None:
            return service
        return Service(options.app, options.environment)

    def check(action: Callable[[Service, Options], str]) -> Callable[[], str]:
        return lambda: action(connected(), options)

    steps = [
        Check("Modal", True, check(_account)),
        Check("image", True, check(_image)),
        Check("image's digest", False, check(_digest)),
    ]
    secrets = options.secrets
    for name in sorted(set(secrets.values())):
        wanted = required(secrets, name)
        action = check(partial(_secret, name, wanted))
        steps.append(Check(f"secret {', '.join(wanted)}", True, action))
    return steps


class _Client(Protocol):
    @property
    def hello(self) -> Method[object]: ...


def _account(service: Service, options: Options) -> str:
    async def hello(client: _Client, app: "App") -> str:
        await client.hello.aio()
        return str(app.app_id)

    try:
        app = service.ask(hello)
    except Refused as error:
        environment = options.environment
        place = f", environment {environment}" if environment else ""
        raise LookupError(f"the app {service.app}{place}: {_reason(error)}") from error
    return f"{service.server}, app {service.app} ({app})"


def _image(service: Service, options: Options) -> str:
    if options.image is None:
        raise LookupError(
            "no image is given: set launch.modal.image, or give the grid: --grid GRID"
        )
    try:
        return f"{options.image}: {service.image(options.image, _BUILD_SECONDS).object_id}"
    except Refused as error:
        raise LookupError(f"the image {options.image}: {_reason(error)}") from error


def _digest(service: Service, options: Options) -> str:
    del service
    require_digest(str(options.image))
    return "it has one"


def _secret(name: str, wanted: Sequence[str], service: Service, options: Options) -> str:
    """Check that the secret exists and has the variables `wanted`. The message about a missing
    secret leaves out `name`, in case the user wrote the secret's value instead of its name."""
    del options
    variables = ", ".join(wanted)

    async def find(client: "Client", app: "App") -> None:
        del app
        keywords = {"environment_name": service.environment, "required_keys": wanted}
        await official().Secret.from_name(name, **keywords).hydrate.aio(client)

    try:
        service.ask(find)
    except Refused as error:
        if error.kind == "PermissionDeniedError":
            return "cannot be read"
        if error.kind != "NotFoundError":
            raise LookupError(
                f"the secret for {variables} cannot be checked: {_reason(error)}"
            ) from error
        raise LookupError(
            f"the secret for {variables} in launch.modal.secrets does not exist, or lacks a "
            f"variable: create it with `modal secret create NAME {wanted[0]}=...`"
        ) from error
    return name


def _reason(error: Refused) -> str:
    return str(error).removeprefix("modal: ")
