"""Counts a recipe's usage of the Tinker service in the recipe's own process, by wrapping the SDK's
public methods. Loaded by path; uses only the standard library. Its errors never end a recipe."""

# The public methods of the SDK's clients are wrapped when the recipe imports `tinker`. A request
# counts when its answer arrives, as the service counts it; failed and abandoned requests do not
# count. Each process writes its counts to its own file `<pid>.json`, about once a second while they
# change, and at its end:
#
# {"schema": 1, "unknown": "what of the SDK is not as expected" or null,
#  "paused": "rate_limit" or "capacity" or null, "sessions": ["ids of the service"],
#  "models": {"Qwen/Qwen3-8B": {"prefill": 0, "cached": 0, "sample": 0, "train": 0,
#                               "requests": 0, "steps": 0}}}
#
# `prefill` counts tokens of prompts (and of forward passes without a backward pass), once for each
# request, whatever the number of samples. Tokens that the service reports as read before count as
# `cached` instead. `sample` tokens were sampled, `train` tokens went through forward and backward
# passes. `steps` are those of the optimizer. `paused` says why the service delays a client now.
# The SDK knows that at once, but prints it only after a quarter of an hour.

from __future__ import annotations

import atexit
import functools
import inspect
import json
import os
import sys
import threading
import time

TYPE_CHECKING = False  # importing typing slows the start of each run by milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Protocol, TypeGuard

    from tinker.types import Datum, GetInfoResponse, SampleResponse

    class Observer(Protocol):
        """An object that the SDK notifies when the service pauses or resumes a client."""

        on_queue_state_change: Callable[..., object]

    class Client(Protocol):
        """A client of the SDK. A client may have only one of these methods."""

        def get_base_model(self) -> str: ...
        def get_info(self) -> GetInfoResponse: ...

    class Promised(Protocol):
        """The handle of a request to the service."""

        def future(self) -> Future[object]: ...

    class Service(Protocol):
        """The SDK's class whose methods create clients."""

        __init__: Callable[..., None]
        create_lora_training_client: Callable[..., object]

    Count = Callable[..., None]
    """A function that counts a request. Its arguments are the client, the answer, and the number of
    tokens in the request."""

KINDS = ("prefill", "cached", "sample", "train", "requests", "steps")
_MODEL = "_sweeper_model"
"""The attribute in which the name of a client's model is cached."""
UNKNOWN = "unknown"
"""The model name for clients that do not name their model."""
_WRITE_SECONDS = 1.0
_CLIENTS = {
    "TrainingClient": ("forward", "forward_backward", "forward_backward_custom", "optim_step"),
    "SamplingClient": ("sample", "compute_logprobs"),
    "ServiceClient": ("create_lora_training_client",),
}
"""The methods that are wrapped. All must exist."""
_PAUSES = {"paused_rate_limit": "rate_limit", "paused_capacity": "capacity"}
_VOUCHED_SECONDS = 90.0
"""Seconds after which a pause no longer counts, unless the SDK reports it again. The waiting
request may have been abandoned."""


def install(folder: str, labels: dict[str, str], then: Callable[[], None] | None = None) -> None:
    """Count the usage of the service as soon as `tinker` is imported, and write the counts to the
    existing `folder`. `labels` are sent to the service as metadata of each session, in addition to
    the program's own metadata. `then` is called once, after the first counts were written."""
    meter = Meter(folder, then)
    if "tinker" in sys.modules:
        wrap(sys.modules["tinker"], meter, labels)
    else:
        sys.meta_path.insert(0, ImportHook("tinker", lambda sdk: wrap(sdk, meter, labels)))


class Meter:
    """The recipe's usage of the service, counted by model. Thread-safe. `clock` gives monotonic
    seconds."""

    def __init__(
        self,
        folder: str,
        then: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._clock = folder, clock
        self._then = then
        self.unknown: str | None = None
        self._begin()
        os.register_at_fork(after_in_child=self._begin)
        atexit.register(self._write_last)

    def _begin(self) -> None:
        """Reset the counts and the writer thread. A forked child calls this too."""
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._counts: dict[str, dict[str, int]] = {}
        # The counts of clients whose model is not known yet.
        self._nameless: list[tuple[Client, dict[str, int]]] = []
        # For each observer: the reason of its pause, and when it was reported.
        self._pauses: dict[int, tuple[str, float]] = {}
        self._sessions: dict[str, None] = {}
        self._changed = threading.Event()
        self._writer: threading.Thread | None = None

    def add(self, client: Client, **counts: int) -> None:
        """Add to the counts of the client's model."""
        model = getattr(client, _MODEL, None)
        with self._lock:
            if model is None:
                self._nameless.append((client, counts))
            else:
                self._add(model, counts)
        self._wake()

    def session(self, identity: str) -> None:
        """Record the id of a session at the service."""
        with self._lock:
            new = identity not in self._sessions
            self._sessions[identity] = None
        if new:
            self._wake()

    def pause(self, client: object, why: str | None) -> None:
        """Record why the service has paused a client (None: it is not paused)."""
        with self._lock:
            before = self._pauses.pop(id(client), None)
            if why is not None:
                self._pauses[id(client)] = (why, self._clock())
        if why is not None or before is not None:
            self._wake()

    def _paused(self) -> str | None:
        """Return why a client is paused now, or None if no client is paused."""
        since = self._clock() - _VOUCHED_SECONDS
        with self._lock:
            return next((why for why, when in self._pauses.values() if when > since), None)

    def note_unknown(self, problem: str) -> None:
        """Record that something in the SDK is not as expected."""
        self.unknown = self.unknown or problem
        self._wake()

    def write(self) -> None:
        """Write the counts. If the folder cannot be written, do nothing."""
        with self._writing:
            self._ask_models()
            paused = self._paused()
            with self._lock:
                document = {
                    "schema": 1,
                    "unknown": self.unknown,
                    "paused": paused,
                    "sessions": list(self._sessions),
                    "models": self._counts,
                }
                text = json.dumps(document)
            path = os.path.join(self._folder, f"{os.getpid()}.json")
            partial = os.path.join(self._folder, f".tmp-{os.getpid()}")
            try:
                with open(partial, "w", encoding="utf-8") as file:
                    file.write(text)
                os.replace(partial, path)
            except OSError:
                return

    def _add(self, model: str, counts: dict[str, int]) -> None:
        total = self._counts.setdefault(model, dict.fromkeys(KINDS, 0))
        for kind, count in counts.items():
            total[kind] += count

    def _wake(self) -> None:
        """Make the writer thread write the file soon."""
        self._changed.set()
        with self._lock:
            if self._writer is None:
                self._writer = threading.Thread(target=self._keep_writing, daemon=True)
                self._writer.start()

    def _keep_writing(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            _safely(self, self.write)
            # A session starts before the imports that the first use needs, such as a tokenizer's.
            if self._then is not None and self._counts:
                then, self._then = self._then, None
                _safely(self, then)
            time.sleep(_WRITE_SECONDS)

    def _write_last(self) -> None:
        if self._writer is not None:
            _safely(self, self.write)

    def _ask_models(self) -> None:
        """Ask each client whose model is unknown for its model, and add the client's counts to
        the model's. Do not call this in a thread in which the SDK receives answers."""
        with self._lock:
            nameless, self._nameless = self._nameless, []
        for client, counts in nameless:
            model = _model_of(client)
            with self._lock:
                self._add(model or UNKNOWN, counts)


def _model_of(client: Client) -> str | None:
    """Return the base model of a client; None if unknown."""
    try:
        model = getattr(client, _MODEL, None)
        if model is None:
            if hasattr(client, "get_base_model"):
                model = client.get_base_model()
            else:
                model = client.get_info().model_data.model_name
            setattr(client, _MODEL, str(model))
        return str(model)
    except Exception:  # noqa: BLE001 - whatever the SDK has become
        return None


def wrap(sdk: ModuleType, meter: Meter, labels: dict[str, str]) -> None:
    """Wrap methods of the client classes in the module `sdk`. If one of the methods is missing,
    report that and count nothing."""
    _wrap_observer(getattr(sdk, "SamplingClient", None), meter)
    logger = sys.modules.get(f"{getattr(sdk, '__name__', '')}.lib.queue_state_logger")
    _wrap_observer(getattr(logger, "QueueStateLogger", None), meter)
    missing = [
        f"{name}.{method}"
        for name, methods in _CLIENTS.items()
        for method in methods
        if not callable(getattr(getattr(sdk, name, None), method, None))
    ]
    if missing:
        version = getattr(sdk, "__version__", "?")
        meter.note_unknown(f"tinker {version} has no {', '.join(missing)}: usage is not counted")
        return
    _wrap_training(sdk.TrainingClient, meter)
    _wrap_sampling(sdk.SamplingClient, meter)
    _wrap_service(sdk.ServiceClient, meter, labels)


def _wrap_observer(observer: type[Observer] | None, meter: Meter) -> None:
    """Record each pause that the SDK reports by calling `on_queue_state_change`. Do nothing if
    `observer` has no such method."""
    original = getattr(observer, "on_queue_state_change", None)
    if observer is None or original is None:
        return

    @functools.wraps(original)
    def observed(self: object, state: object, *given: object, **named: object) -> object:
        why = _PAUSES.get(str(getattr(state, "value", state)))
        _safely(meter, lambda: meter.pause(self, why))
        return original(self, state, *given, **named)

    observer.on_queue_state_change = observed


def _wrap_training(client: type[Client], meter: Meter) -> None:
    inside = threading.local()

    def passed(kind: str) -> Count:
        def counted(self: Client, _answer: SampleResponse, tokens: int) -> None:
            meter.add(self, **{kind: tokens, "requests": 1})

        return counted

    def custom(self: Client, _answer: SampleResponse, tokens: int) -> None:
        # The SDK sends two requests: a forward pass, and a forward and backward pass.
        meter.add(self, prefill=tokens, train=tokens, requests=2)

    def stepped(self: Client, _answer: object, _tokens: int) -> None:
        meter.add(self, steps=1, requests=1)

    _wrap_call(client, "forward", meter, passed("prefill"), inside)
    _wrap_call(client, "forward_backward", meter, passed("train"), inside)
    _wrap_call(client, "optim_step", meter, stepped, inside)
    _wrap_call(client, "forward_backward_custom", meter, custom, inside)


def _wrap_sampling(client: type[Client], meter: Meter) -> None:
    inside = threading.local()

    def sampled(self: Client, answer: SampleResponse, tokens: int) -> None:
        cached = int(getattr(answer, "prompt_cache_hit_tokens", 0) or 0)
        meter.add(
            self,
            prefill=tokens - cached,
            cached=cached,
            sample=sum(len(sequence.tokens) for sequence in answer.sequences),
            requests=1,
        )

    def scored(self: Client, _answer: SampleResponse, tokens: int) -> None:
        # The SDK samples one token, and does not report cached tokens.
        meter.add(self, prefill=tokens, sample=1, requests=1)

    _wrap_call(client, "sample", meter, sampled, inside)
    _wrap_call(client, "compute_logprobs", meter, scored, inside)


def _wrap_service(client: type[Service], meter: Meter, labels: dict[str, str]) -> None:
    original, create = client.__init__, client.create_lora_training_client
    is_named = "display_name" in inspect.signature(original).parameters
    shown = os.environ.get("SWEEPER_NAME")

    @functools.wraps(original)
    def begin(
        self: object, user_metadata: dict[str, str] | None = None, *given: object, **named: object
    ) -> None:
        if is_named and named.get("display_name") is None and shown:
            named["display_name"] = shown
        original(self, {**labels, **(user_metadata or {})}, *given, **named)

    @functools.wraps(create)
    def created(self: object, base_model: str, *given: object, **named: object) -> object:
        client = create(self, base_model, *given, **named)
        _safely(meter, lambda: _remember(client, base_model))
        return client

    # The SDK's own method for its session. Without it, sessions are not recorded.
    holder = getattr(client, "_get_session_holder", None)
    if holder is not None:

        @functools.wraps(holder)
        def held(self: object) -> object:
            answer = holder(self)
            _safely(meter, lambda: _note_session(meter, answer))
            return answer

        setattr(client, "_get_session_holder", held)  # noqa: B010 - the protocol has no such method
    client.__init__ = begin
    client.create_lora_training_client = created


def _note_session(meter: Meter, holder: object) -> None:
    identity = getattr(holder, "_session_id", None)
    if isinstance(identity, str):
        meter.session(identity)


def _remember(client: object, model: str) -> None:
    """Store the model's name in a client, or in the client that a future will return."""
    if hasattr(client, "forward_backward"):
        setattr(client, _MODEL, model)
    future: Callable[[], Future[object]] | None = getattr(client, "future", None)
    if future is not None:

        def done(answered: Future[object]) -> None:
            if not answered.cancelled() and answered.exception() is None:
                _remember(answered.result(), model)

        future().add_done_callback(done)


def _wrap_call(
    client: type[Client], name: str, meter: Meter, count: Count, inside: threading.local
) -> None:
    """Wrap a method that returns a future. When the answer arrives, `count` is called with the
    client, the answer, and the number of tokens in the method's `data` or `prompt`. If a wrapped
    method calls another wrapped method, only the inner call is counted."""
    original = getattr(client, name)

    @functools.wraps(original)
    def called(self: Client, *given: object, **named: object) -> object:
        first = given[0] if given else named.get("data", named.get("prompt"))
        tokens = _tokens_of(first, meter)
        outer, inside.delegated = getattr(inside, "delegated", None), False
        try:
            future = original(self, *given, **named)
            delegated = inside.delegated
        finally:
            inside.delegated = True if outer is not None else None
        if not delegated and tokens is not None:
            _safely(
                meter,
                lambda: _when_answered(future, meter, lambda answer: count(self, answer, tokens)),
            )
        return future

    setattr(client, name, called)


def _when_answered(future: Promised, meter: Meter, count: Callable[[object], None]) -> None:
    def done(answered: Future[object]) -> None:
        if not answered.cancelled() and answered.exception() is None:
            _safely(meter, lambda: count(answered.result()))

    future.future().add_done_callback(done)


def _safely(meter: Meter, act: Callable[[], None]) -> None:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - counting must never end a recipe
        meter.note_unknown(f"some usage is not counted: {type(error).__name__}: {error}")


def _is_data(first: object) -> TypeGuard[Sequence[Datum]]:
    return isinstance(first, list | tuple)


def _tokens_of(first: object, meter: Meter) -> int | None:
    """Return the number of tokens of a prompt or of a list of data; 0 for other values, such as an
    optimizer's parameters. If the tokens cannot be counted, report that and return None."""
    try:
        if _is_data(first):
            return sum(datum.model_input.length for datum in first)
        return int(getattr(first, "length", 0))
    except Exception as error:  # noqa: BLE001 - counting must never end a recipe
        meter.note_unknown(f"some usage is not counted: {type(error).__name__}: {error}")
        return None


class ImportHook:
    """An import finder for one module. It finds the module with the other finders, and calls `then`
    with the module after the module was executed."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then
        self._asking = False

    def find_spec(self, name: str, *_given: object) -> ModuleSpec | None:
        """Return the spec that other finders have for the module, with a loader that also calls
        `then`. Return None for other modules, or if no finder has a spec."""
        if name != self._name or self._asking:
            return None
        import importlib.util

        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._then(module)

        spec.loader.exec_module = executed
        return spec
