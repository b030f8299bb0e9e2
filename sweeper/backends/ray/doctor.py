"""Checks a Ray cluster before the first job: the head, authentication, the nodes, and whether a
node can run such jobs. Submits nothing."""

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from sweeper.backends.base import Check
from sweeper.backends.ray.backend import RayBackend, lacking, open_backend
from sweeper.backends.ray.messages import Node
from sweeper.paths import add_extra


def checks(options: Mapping[str, object]) -> list[Check]:
    """Return the checks of `sweeper doctor --backend ray`, for a grid's options. If the head does
    not answer, the checks of the nodes fail without a query."""
    reached: list[RayBackend] = []

    def head() -> str:
        backend = open_backend("/doctor", options)
        hello = backend.hello()
        reached.append(backend)
        return f"{hello['address']}, Ray {hello['version']}"

    def then(action: Callable[[Sequence[Node]], str]) -> Callable[[], str]:
        def checked() -> str:
            if not reached:
                raise LookupError("unknown: the head did not answer")
            return action(reached[0].driver.ask("nodes"))

        return checked

    return [
        Check("Ray", True, _installed),
        Check("head", True, head),
        Check("token", False, _token),
        Check("nodes", True, then(_nodes)),
        Check("a node for a job", True, then(lambda nodes: _room(options, nodes))),
    ]


def _installed() -> str:
    try:
        return f"ray {version('ray')}"
    except PackageNotFoundError:
        raise LookupError(f"not installed: `{add_extra('ray')}`") from None


def _token() -> str:
    if any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        return "a token in the environment"
    if os.environ.get("RAY_AUTH_MODE") == "token":
        return "the token in ~/.ray/auth_token"
    raise LookupError(
        "no token: anybody who can reach the head can run programs on its nodes. Start "
        "the cluster with RAY_AUTH_MODE=token (Ray 2.52 or later)"
    )


def _nodes(nodes: Sequence[Node]) -> str:
    if not nodes:
        raise LookupError("no node is alive")
    amounts = [(sum(node["has"].get(key, 0) for node in nodes), key) for key in ("CPU", "GPU")]
    return f"{len(nodes)}, " + ", ".join(f"{amount:g} {key}" for amount, key in amounts if amount)


def _room(options: Mapping[str, object], nodes: Sequence[Node]) -> str:
    why = lacking(options, nodes)
    if why is None:
        return "yes"
    if options.get("wait_for_nodes"):
        return f"not yet ({why})"
    raise LookupError(f"{why}: set launch.ray.wait_for_nodes if a larger node will be added")
