"""Exit codes of jobs in containers."""

import pytest

from sweeper.backends.container_jobs import process_exit_code


@pytest.mark.parametrize(
    ("told", "code"), [(0, 0), (3, 3), (127, 127), (128, 128), (137, -9), (143, -15), (255, 255)]
)
def test_what_a_container_tells_is_what_python_would(told: int, code: int) -> None:
    assert process_exit_code(told) == code
