"""`sweeper chat` and `sweeper endpoint` sample answers from the weights of a run."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from typing import NamedTuple

from sweeper.commands import Verb
from sweeper.commands import arguments as shared
from sweeper.commands.checkpoint_names import model_of, service_environment
from sweeper.commands.selection import open_named, run_of
from sweeper.common.sanitize import sanitize
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.results import weights

_RECIPE = "sweeper.recipes.talking"
_KEY = "SWEEPER_ENDPOINT_KEY"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _add_chat(verb: ArgumentParser) -> None:
    shared.weights(verb)
    _add_sampling(verb)
    how = shared.group(verb, "how to answer")
    how.add_argument("--system", metavar="TEXT", help="a system message")
    shared.roots(verb)


def _add_endpoint(verb: ArgumentParser) -> None:
    shared.weights(verb)
    _add_sampling(verb)
    where = shared.group(verb, "where to serve")
    where.add_argument("--port", type=int, default=0, help="the port (default: any free port)")
    where.add_argument(
        "--host",
        default="127.0.0.1",
        help=f"the address to bind; clients on other machines must send ${_KEY} as their API key",
    )
    shared.roots(verb)


def _add_sampling(verb: ArgumentParser) -> None:
    how = shared.group(verb, "how to answer")
    how.add_argument(
        "--max-tokens", type=int, default=512, help="longest answer in tokens (default: 512)"
    )
    how.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        help="sampling temperature (default: 1); 0 takes the likeliest token",
    )


class _Weights(NamedTuple):
    """The command-line options and the environment variables of the sampling process."""

    options: dict[str, object]
    environment: dict[str, str]


def _chat(arguments: Namespace) -> int:
    """Run a conversation in the terminal until the input ends."""
    return _run(arguments, _weights(arguments), to="person", system=arguments.system)


def _endpoint(arguments: Namespace) -> int:
    """Serve the weights over HTTP until a signal."""
    if arguments.host not in _LOOPBACK and not os.environ.get(_KEY):
        raise UsageError(
            f"--host {arguments.host} lets other machines use your account: export {_KEY}, an API "
            "key that clients must send"
        )
    if not 0 <= arguments.port < 65536:
        raise UsageError("--port takes 0 to 65535")
    weights = _weights(arguments)
    return _run(arguments, weights, to="programs", host=arguments.host, port=arguments.port)


def _weights(arguments: Namespace) -> _Weights:
    if arguments.max_tokens < 1 or arguments.temperature < 0:
        raise UsageError("--max-tokens takes 1 or more, --temperature 0 or more")
    registry, (name,) = open_named(arguments.root, [arguments.of])
    run = run_of(registry, name)
    record = weights.choose(run, arguments.which, weights.SAMPLER, weights.STATE)
    environment = service_environment(registry.sweep(run.sweep).plan.service)
    options = {
        "checkpoint": record.get(weights.SAMPLER) or record[weights.STATE],
        "checkpoint_name": record.get("name"),
        "model_name": model_of(run) or "unknown",
        "name": f"{run.sweep}/{run.name}",
        "thinking": record.get("thinking"),
    }
    return _Weights(options, {**os.environ, **environment})


def _run(arguments: Namespace, weights: _Weights, **more: object) -> int:
    """Run the sampling process in this terminal. Then print the cost of the tokens that were read
    and sampled."""
    with tempfile.TemporaryDirectory(prefix="sweeper-chat-") as folder:
        usage_file = os.path.join(folder, "usage.json")
        options = weights.options | more
        options |= {"max_tokens": arguments.max_tokens, "temperature": arguments.temperature}
        options["usage_file"] = usage_file
        command = [f"{key}={value}" for key, value in options.items() if value is not None]
        with subprocess.Popen(
            [sys.executable, "-P", "-m", _RECIPE, *command], env=weights.environment
        ) as process:
            signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
            while (code := process.poll()) is None:
                # On Ctrl-C, the process gets the signal too, and ends by itself.
                with suppress(KeyboardInterrupt):
                    process.wait()
        with suppress(FileNotFoundError):
            _print_cost(str(options["model_name"]), usage_file)
    if code not in (0, 130, 143):
        raise EnvironmentFailure(f"no answer from {weights.options['checkpoint']}")
    return 0


def _print_cost(model: str, usage_file: str) -> None:
    from sweeper.money.prices import amount, load, money
    from sweeper.sweep.usage import Counts, Usage

    with open(usage_file, encoding="utf-8") as file:
        counts = json.load(file)
    cost = amount(Usage({model: Counts(**counts)}), load())
    dollars = "no price known" if cost.unpriced else f"{money(cost.usd)} dollars ({cost.basis})"
    total = f"{counts['prefill']} tokens read, {counts['sample']} written"
    line = f"{total}: {dollars}, not counted in the sweep's costs and budget"
    print(sanitize(line), file=sys.stderr)


VERBS = {"chat": Verb(_add_chat, _chat), "endpoint": Verb(_add_endpoint, _endpoint)}
