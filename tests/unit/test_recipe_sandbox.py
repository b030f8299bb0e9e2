import os
import re

import pytest

from sweeper.recipes.sandbox import Sandbox
from sweeper.recipes.service import RecipeError

TEXT = """
import os, sys, time

def score(question, response, answer):
    print("this is lost")
    return float(response == answer)

def process(question, response, answer):
    return os.getpid()

def odd(question, response, answer):
    if response == "hang":
        time.sleep(60)
    if response == "grow":
        return len(bytearray(1 << 30))
    if response == "write":
        open(question, "w").write("x")
    if response == "die":
        os._exit(3)
    if response == "secret":
        return float("TINKER_API_KEY" in os.environ)
    if response == "text":
        return "1"
    if response == "nan":
        return float("nan")
    return 1 / len(response)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "score.py"
    path.write_text(TEXT)
    return path


@pytest.fixture
def sandbox(file):
    made = []

    def open_one(name, **limits):
        made.append(Sandbox(f"{file}:{name}", **limits))
        return made[-1]

    yield open_one
    for opened in made:
        opened.close()


def test_a_function_scores(sandbox):
    score = sandbox("score")
    assert score("2+2", "4", "4") == (1.0, None)
    assert score("2+2", "5\n\u2028", "4") == (0.0, None)


def test_whatever_a_function_does_is_an_answer_and_the_next_call_works(
    sandbox, tmp_path, monkeypatch
):
    monkeypatch.setenv("TINKER_API_KEY", "tml-secret")
    odd = sandbox("odd", seconds=20.0, megabytes=256)
    written = tmp_path / "written"
    for response, error in (
        ("", "ZeroDivisionError: division by zero (line 26)"),
        ("text", "TypeError: the function returned str, not a number"),
        ("nan", "ValueError: the function returned nan"),
        ("grow", "MemoryError: it needs more than 256 MB"),
        ("die", "its process ended (exit code 3)"),
    ):
        assert odd("?", response, "") == (None, error)
        assert odd("?", "ab", "") == (0.5, None)
    odd(str(written), "write", "")
    assert not written.exists() or not written.read_bytes()
    assert odd("?", "secret", "") == (0.0, None)


def test_a_function_that_hangs_is_ended(sandbox):
    odd = sandbox("odd", seconds=0.2)
    assert odd("?", "hang", "") == (None, "it took longer than 0.2 s")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("score.txt:score", "is not a function of a file: write path/to/file.py:name"),
        ("none.py:score", "no file none.py"),
        ("score.py:none", "AttributeError: it has no function 'none'"),
        ("broken.py:score", "ModuleNotFoundError: No module named 'nowhere' (line 1)"),
    ],
)
def test_what_cannot_be_loaded_is_told(file, monkeypatch, given, message):
    monkeypatch.chdir(file.parent)
    (file.parent / "broken.py").write_text("import nowhere\n")
    with pytest.raises(RecipeError, match=re.escape(message)):
        Sandbox(given)


def test_examples_are_tried_first(file, sandbox):
    file.write_text(TEXT + '\nEXAMPLES = [("q", "a", "a", 1), ("q", "b", "a", 0.5)]\n')
    score = sandbox("score")
    with pytest.raises(RecipeError, match=re.escape("gives 0.0 for EXAMPLES[1], not 0.5")):
        score.check([])
    with pytest.raises(RecipeError, match="fails on question='q', response='': ZeroDivisionError"):
        sandbox("odd").check([("q", "", "a")])


def test_nothing_is_left_running(sandbox):
    process = sandbox("process")
    pid = int(process("", "", "")[0])
    process.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
