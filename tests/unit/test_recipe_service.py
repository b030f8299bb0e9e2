import http.server
import logging
import socket
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from sweeper.recipes import service
from sweeper.testing import FakeClock


@pytest.fixture
def request_under_way():
    """Return a pending request of the SDK and the future of its answer."""
    from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

    future = Future()
    return AwaitableConcurrentFuture(future), future


@pytest.fixture
def nobody():
    """Yield an address where no server listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def somebody():
    """Yield the address of a server that answers 404 to every request."""

    class Quiet(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(404)

        def log_message(self, format, *args):  # noqa: A002
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def impatient(url):
    nothing: Any = None
    return service.Service(nothing, url, knock_seconds=0.01, patience_seconds=0.05)


def test_waiting_ends_when_the_service_is_gone(nobody, request_under_way):
    request, _ = request_under_way
    with pytest.raises(service.RecipeError, match=f"the service at {nobody} no longer answers"):
        impatient(nobody).wait(request)


def test_waiting_goes_on_while_the_service_answers(somebody, request_under_way):
    request, future = request_under_way
    threading.Timer(0.15, future.set_result, ["late"]).start()
    assert impatient(somebody).wait(request) == "late"


def test_a_request_s_own_timeout_is_passed_on(somebody, request_under_way):
    request, future = request_under_way
    future.set_exception(TimeoutError("its own"))
    with pytest.raises(TimeoutError, match="its own"):
        impatient(somebody).wait(request)


def test_a_service_that_is_not_there_is_told_at_once(nobody, monkeypatch):
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    with pytest.raises(service.RecipeError, match=f"no service answers at {nobody}"):
        service.connect(nobody, {})


def test_a_missing_key_is_told_at_once(monkeypatch, tmp_path):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    with pytest.raises(service.RecipeError, match="no usable API key: write `service: local`"):
        service.connect(None, {})


def test_a_failure_of_the_service_is_one_line(capsys):
    import tinker

    def fail():
        try:
            raise tinker.TinkerError("busy,\ntry later")
        except tinker.TinkerError as error:
            raise RuntimeError("this client is poisoned") from error

    with pytest.raises(SystemExit) as ended, service.errors_in_one_line():
        fail()
    assert ended.value.code == "error: the service failed: TinkerError: busy, try later"


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError), service.errors_in_one_line():
        print(1 / 0)


@pytest.fixture
def http_logger():
    """Yield the logger of the HTTP client in its initial state."""
    logger = logging.getLogger("httpx")
    before = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.WARNING)
    yield logger
    logger.handlers, level, logger.propagate = before
    logger.setLevel(level)


def test_being_turned_away_is_told_now_and_then(http_logger, capsys):
    logger, clock = http_logger, FakeClock()
    service.tell_of_waits(clock)
    service.tell_of_waits(clock)
    for seconds, status in ((1, "200 OK"), (1, "429 Too Many Requests")) * 2 + ((9, "429"),):
        clock.sleep(seconds)
        logger.info('HTTP Request: %s "HTTP/1.1 %s"', "POST http://service/", status)
    clock.sleep(1)
    logger.info('HTTP Request: "HTTP/1.1 429 Too Many Requests"')
    waiting = "waiting: the service answers 429 Too Many Requests\n"
    assert capsys.readouterr().out == waiting * 2
