"""Answers with the weights of a checkpoint: to a person in the terminal, or to programs that speak
OpenAI's protocol. `sweeper chat` and `sweeper endpoint` start this program."""

import ctypes
import json
import math
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import chz

from . import chat, samplers, service, thinking

KEY = "SWEEPER_ENDPOINT_KEY"
"""The environment variable with the key that clients of the endpoint must send. If the variable is
not set, clients need no key."""
_PR_SET_PDEATHSIG = 1


@chz.chz
class Config:
    """The model that answers, how it samples, and its clients."""

    checkpoint: str = chz.field(doc="address of the weights")
    model_name: str = chz.field(doc="name of the base model, for messages")
    name: str = chz.field(doc="name that clients use for the model")
    checkpoint_name: str | None = chz.field(default=None, doc="name of the checkpoint")
    thinking: Literal["on", "off"] | None = chz.field(
        default=None, doc="whether the model writes thoughts"
    )
    to: Literal["person", "programs"] = chz.field(default="person", doc="who asks")
    system: str | None = chz.field(default=None, doc="system message")
    max_tokens: int = chz.field(default=512, doc="longest answer, in tokens")
    temperature: float = chz.field(default=1.0, doc="0 for the likeliest tokens")
    host: str = chz.field(default="127.0.0.1", doc="address that the endpoint binds")
    port: int = chz.field(default=0, doc="port that the endpoint binds; 0: any free one")
    usage_file: str = chz.field(doc="file for the counts of tokens, as JSON")


class Answer(NamedTuple):
    """An answer, why it ended (`stop` or `length`), and the numbers of tokens read and written."""

    text: str
    finish: str
    read: int
    written: int


class Unanswered(service.RecipeError):
    """Raised if the service refuses to answer."""


class Model:
    """The model that answers. Counts the tokens that it reads and writes."""

    def __init__(self, config: Config) -> None:
        self._connection = service.connect(None, {})
        self._sampler = samplers.open_sampler(
            self._connection, config.model_name, config.checkpoint
        )
        plain = service.tokenizer_of(self._sampler)
        self._tokenizer = thinking.applied(plain, config.thinking, config.model_name)
        self._usage_file = config.usage_file
        self._lock = threading.Lock()
        self._counts = {"prefill": 0, "sample": 0}

    def reply(self, messages: chat.Conversation, number: int = 1, **how: Any) -> list[Answer]:
        """Return `number` answers to a conversation. `how` has sampling parameters of the SDK.
        Raises `RecipeError` if the template rejects the messages or the service refuses."""
        prompt, end = chat.render_prompt(self._tokenizer, messages)
        stops: list[str] = how.pop("stop", [])
        if stops:  # the service takes either texts or tokens
            how["stop"] = [*stops, self._tokenizer.decode([end])]
        else:
            how["stop"] = [end]
        return self._sample(prompt, number, how)

    def complete(self, text: str, number: int = 1, **how: Any) -> list[Answer]:
        """Return `number` continuations of a text, without a chat template."""
        prompt = self._tokenizer.encode(text)
        if not prompt:
            raise service.RecipeError("the prompt is empty")
        return self._sample(prompt, number, {k: v for k, v in how.items() if v != []})

    def _sample(self, prompt: list[int], number: int, how: dict[str, Any]) -> list[Answer]:
        import tinker

        try:
            request = self._sampler.sample(
                tinker.ModelInput.from_ints(prompt), number, tinker.SamplingParams(**how)
            )
            sequences = self._connection.wait(request).sequences
        except tinker.TinkerError as error:
            raise Unanswered(f"the service refuses: {error}") from error
        texts = [text for text in how.get("stop", ()) if isinstance(text, str)]
        answers = [self._answer(sequence, texts, len(prompt)) for sequence in sequences]
        with self._lock:
            self._counts["prefill"] += len(prompt) * number
            self._counts["sample"] += sum(answer.written for answer in answers)
            with open(self._usage_file, "w", encoding="utf-8") as file:
                json.dump(self._counts, file)
        return answers

    def _answer(self, sequence: Any, stops: list[str], read: int) -> Answer:
        text = self._tokenizer.decode(list(sequence.tokens), skip_special_tokens=True)
        ended = sequence.stop_reason == "stop"
        for stop in stops if ended else ():
            text = text.partition(stop)[0]
        return Answer(text, "stop" if ended else "length", read, len(sequence.tokens))


def main(config: Config) -> None:
    """Chat on standard input, or serve HTTP, until the input ends or a signal arrives."""
    _end_with_parent()
    with service.errors_in_one_line(), service.stop_on_signals():
        model = Model(config)
        print(f"{config.name}, checkpoint {config.checkpoint_name}", file=sys.stderr, flush=True)
        if config.to == "person":
            _talk(model, config)
        else:
            _serve(model, config)


def _end_with_parent() -> None:
    """Let the kernel end this process when the parent process, `sweeper`, ends."""
    parent = os.getppid()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(143)


def _talk(model: Model, config: Config) -> None:
    """Answer each line of standard input."""
    if sys.stdin.isatty():
        import readline  # noqa: F401 - lines can be edited then

        print("/reset starts a new conversation, Ctrl-D ends the chat", file=sys.stderr)
    start = [{"role": "system", "content": config.system}] if config.system else []
    messages: chat.Conversation = [*start]
    while (line := _next_line()) is not None:
        if line.strip() == "/reset":
            messages = [*start]
        elif line.strip():
            messages.append({"role": "user", "content": line})
            try:
                [answer] = model.reply(
                    messages, max_tokens=config.max_tokens, temperature=config.temperature
                )
            except service.RecipeError as error:
                print(
                    f"error: {error} (/reset starts a new conversation)",
                    file=sys.stderr,
                    flush=True,
                )
                messages.pop()
                continue
            messages.append({"role": "assistant", "content": answer.text})
            print(_harmless(answer.text) if sys.stdout.isatty() else answer.text, flush=True)
            if answer.finish == "length":
                print(f"(cut off: max_tokens={config.max_tokens})", file=sys.stderr, flush=True)


def _harmless(text: str) -> str:
    """Remove the characters that control a terminal from a model's text."""
    return "".join(
        character for character in text if character.isprintable() or character in "\n\t"
    )


def _next_line() -> str | None:
    """Return the next line of standard input; None at its end."""
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None


def _serve(model: Model, config: Config) -> None:
    """Serve OpenAI's chat completions, completions and list of models."""
    import socket

    import uvicorn

    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        listener = socket.create_server((config.host, config.port), family=family)
    except OSError as error:
        where = f"{config.host}, port {config.port}"
        raise service.RecipeError(f"cannot serve at {where}: {error.strerror or error}") from None
    address, port = listener.getsockname()[:2]
    shown = f"[{address}]" if ":" in address else address
    print(f"http://{shown}:{port}/v1", flush=True)
    server = uvicorn.Server(uvicorn.Config(application(model, config), log_level="warning"))
    server.run(sockets=[listener])


class Refused(Exception):
    """A request that cannot be served: the message, the field that is wrong, and the HTTP
    status."""

    def __init__(self, message: str, field: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.field, self.status = field, status


def _failed(status: int, message: str, field: str | None = None) -> Any:
    """Return a response in the form of OpenAI's errors."""
    from starlette.responses import JSONResponse

    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": field, "code": None}
    return JSONResponse({"error": error}, status)


def _refusal(headers: Mapping[str, str], key: str | None) -> Any:
    """Return a response that refuses a request; None if the request is allowed. `key` is the key
    that clients must send. If `key` is None, only requests to localhost that come from no web page
    are allowed. Otherwise any web site could spend the user's tokens through the browser."""
    if key is None:
        host = urlsplit(f"//{headers.get('host', '')}").hostname
        if "origin" in headers or host not in service.LOOPBACK:
            return _failed(403, f"requests from web pages or for other host names need {KEY}")
        return None
    sent = headers.get("authorization", "").removeprefix("Bearer ")
    is_right = secrets.compare_digest(sent.encode(), key.encode())
    return None if is_right else _failed(401, "the key is wrong")


def application(model: Model, config: Config) -> Any:
    """Return the ASGI application of the endpoint."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    started, key = int(time.time()), os.environ.get(KEY) or None

    async def models(request: Request) -> Response:
        if (refused := _refusal(request.headers, key)) is not None:
            return refused
        about = {"id": config.name, "object": "model", "created": started, "owned_by": "sweeper"}
        return JSONResponse({"object": "list", "data": [about]})

    async def answered(request: Request, chats: bool) -> tuple[dict[str, Any], list[Answer]]:
        """Return the parsed body of a request, and the answers. Raises `Refused`."""
        try:
            body = await request.json()
        except ValueError:
            raise Refused("the body is not JSON") from None
        parameters = _parameters(body, config, chats=chats)
        prompt = _messages(body) if chats else _prompt(body)
        call: Any = model.reply if chats else model.complete
        try:
            return body, await run_in_threadpool(call, prompt, **parameters)
        except Unanswered as error:
            raise Refused(str(error), status=502) from error
        except (service.RecipeError, ValueError) as error:
            raise Refused(" ".join(str(error).split())[:500]) from error

    async def complete(request: Request) -> Response:
        if (refused := _refusal(request.headers, key)) is not None:
            return refused
        chats = request.url.path.endswith("/chat/completions")
        try:
            body, answers = await answered(request, chats)
        except Refused as error:
            return _failed(error.status, str(error), error.field)
        if body.get("stream"):
            options = _table(body, "stream_options")
            events = _events(answers, config.name, chats, bool(options.get("include_usage")))
            return StreamingResponse(events, media_type="text/event-stream")
        return JSONResponse(_completion(answers, config.name, chats))

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/v1/chat/completions", complete, methods=["POST"]),
            Route("/v1/completions", complete, methods=["POST"]),
        ]
    )


_UNSUPPORTED = ("tools", "functions", "logprobs", "top_logprobs", "logit_bias", "audio", "suffix",
                "frequency_penalty", "presence_penalty", "echo", "best_of")  # fmt: skip
"""Fields of OpenAI's protocol that would change the answer and are not supported."""
_MOST = 128
"""The most answers to one request; OpenAI's limit."""


def _parameters(body: Any, config: Config, *, chats: bool) -> dict[str, Any]:
    """Return the sampling parameters of a request. Raises `Refused`."""
    if not isinstance(body, dict):
        raise Refused("the body is not a JSON object")
    for field in _UNSUPPORTED:
        if body.get(field):
            raise Refused(f"{field} is not supported", field)
    _table(body, "stream_options")
    if _table(body, "response_format").get("type", "text") != "text":
        raise Refused('only the type "text" is supported', "response_format")
    if body.get("model") not in (None, config.name):
        raise Refused(f"the only model is {config.name}", "model")
    field = "max_completion_tokens" if chats and "max_completion_tokens" in body else "max_tokens"
    stop = body.get("stop") or []
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
        raise Refused("stop takes a text, or a list of texts", "stop")
    parameters = {
        "max_tokens": _number(body, field, config.max_tokens, 1),
        "temperature": _number(body, "temperature", config.temperature, 0.0),
        "top_p": _number(body, "top_p", 1.0, 0.0),
        "number": _number(body, "n", 1, 1, _MOST),
        "stop": stops,
    }
    if body.get("seed") is not None:
        parameters["seed"] = _number(body, "seed", 0, 0)
    return parameters


def _number(
    body: dict[str, Any], field: str, default: Any, minimum: Any, most: float = math.inf
) -> Any:
    """Return the number in a field of a request, or `default` if the field is missing. Raises
    `Refused`."""
    value = body.get(field)
    if value is None:
        return default
    kinds = (int,) if isinstance(minimum, int) else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not value >= minimum:
        kind = "a whole number" if kinds == (int,) else "a number"
        raise Refused(f"{field} takes {kind} of at least {minimum}", field)
    if value > most:
        raise Refused(f"{field} is at most {most}", field)
    return value


def _table(body: dict[str, Any], field: str) -> dict[str, Any]:
    """Return the object in a field of a request, empty if the field is missing. Raises
    `Refused`."""
    value = body.get(field)
    if value is not None and not isinstance(value, dict):
        raise Refused(f"{field} takes an object", field)
    return value or {}


def _prompt(body: dict[str, Any]) -> str:
    prompt = body.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise Refused("prompt takes a text", "prompt")
    return prompt


def _messages(body: dict[str, Any]) -> chat.Conversation:
    """Return the conversation of a request. Raises `Refused`."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused("messages must be a list with at least one message", "messages")
    conversation: chat.Conversation = []
    for number, message in enumerate(messages):
        role, text = (message.get(name) for name in ("role", "content")) if isinstance(
            message, dict
        ) else (None, None)  # fmt: skip
        if isinstance(text, list) and all(
            isinstance(part, dict) and part.get("type") == "text" for part in text
        ):
            text = "".join(str(part.get("text", "")) for part in text)
        if not isinstance(role, str) or not isinstance(text, str):
            raise Refused("a message has a role, and a text as content", f"messages.{number}")
        conversation.append({"role": "system" if role == "developer" else role, "content": text})
    return conversation


def _completion(answers: list[Answer], name: str, chats: bool) -> dict[str, Any]:
    """Return the response to a request without streaming."""
    choices = [
        {"index": number, "finish_reason": answer.finish, "logprobs": None}
        | (
            {"message": {"role": "assistant", "content": answer.text, "refusal": None}}
            if chats
            else {"text": answer.text}
        )
        for number, answer in enumerate(answers)
    ]
    kind = "chat.completion" if chats else "text_completion"
    return {**_head(name, kind), "choices": choices, "usage": _usage(answers)}


def _head(name: str, kind: str) -> dict[str, Any]:
    identity = f"cmpl-{secrets.token_hex(8)}"
    return {"id": identity, "object": kind, "created": int(time.time()), "model": name}


def _usage(answers: list[Answer]) -> dict[str, int]:
    read, written = answers[0].read, sum(answer.written for answer in answers)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _events(answers: list[Answer], name: str, chats: bool, with_usage: bool) -> Any:
    """Yield the server-sent events of the answers. Each answer has two events: one with the whole
    text, because the service does not stream, and one with the reason why the answer ended."""
    head = _head(name, "chat.completion.chunk" if chats else "text_completion")

    def event(choices: list[dict[str, Any]], **more: Any) -> str:
        return f"data: {json.dumps({**head, 'choices': choices, **more})}\n\n"

    for number, answer in enumerate(answers):
        text = (
            {"delta": {"role": "assistant", "content": answer.text}}
            if chats
            else {"text": answer.text}
        )
        end = {"delta": {}} if chats else {"text": ""}
        yield event([{"index": number, "finish_reason": None, **text}])
        yield event([{"index": number, "finish_reason": answer.finish, **end}])
    if with_usage:
        yield event([], usage=_usage(answers))
    yield "data: [DONE]\n\n"


if __name__ == "__main__":
    service.run_program(main, Config)
