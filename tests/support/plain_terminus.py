"""harbor's Terminus 2 for a tiny model: an answer is one command instead of JSON, and the model
sees only the last line of output. Its loop, terminal, chat and model are those of Terminus."""

from pathlib import Path
from typing import Any

from harbor.agents.terminus_2 import Terminus2
from harbor.agents.terminus_2.terminus_json_plain_parser import ParsedCommand, ParseResult


class _Parser:
    def parse_response(self, response: Any) -> ParseResult:
        text = response if isinstance(response, str) else ""
        return ParseResult([ParsedCommand(f"{text.strip()}\n", 0.1)], False, "", "")


class Plain(Terminus2):
    def _get_parser(self) -> Any:
        return _Parser()

    def _get_prompt_template_path(self) -> Path:
        path = Path(self.logs_dir) / "template.txt"
        path.write_text("{instruction}")
        return path

    def _limit_output_length(self, output: str, max_bytes: int = 10000) -> str:
        lines = [line.strip() for line in output.splitlines()]
        answers = [line for line in lines if line and "#" not in line]
        return answers[-1][-40:] if answers else "?"
