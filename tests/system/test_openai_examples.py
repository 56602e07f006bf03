"""OpenAI's own example programs against a tuned model: only base URL, key and the model's name are changed.

Among them are a chat, streams, tools, structured output and the Responses API.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.fetched import openai_examples
from tests.system.loop import ROOT, Installation

pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]

MODEL = re.compile(r'(?<=model=")gpt-[\w.-]+(?=")')
EXPECTED = {
    "demo.py": ["standard request -----\nThis is a test.\n", "Use os.listdir and print the name of each file."],
    "async_demo.py": ["This is a test.\n"],
    "streaming.py": ['"content":"1', '"finish_reason":"stop"'],
    "parsing.py": ["explanation='Subtract 31 from both sides.'", "answer:  x = -29/8\n"],
    "parsing_tools_stream.py": ["GetWeather(city='San Francisco'", "GetWeather(city='New York'"],
    "httpx2_client.py": ["This is a test.\n"],
}


def run(program: Path, installation: Installation, *arguments: str) -> str:
    """Return the output of a program that gets only OpenAI's environment variables."""
    connection = installation.connection
    environment = {**os.environ, "OPENAI_BASE_URL": f"{connection.url}/v1", "OPENAI_API_KEY": connection.key}
    done = subprocess.run(
        [sys.executable, str(program), *arguments],
        env=environment | {"COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", EXPECTED)
def test_openai_example_program(name: str, installation: Installation, assistant: str, tmp_path: Path) -> None:
    source = (openai_examples() / name).read_text(encoding="utf-8")
    changed, changes = MODEL.subn(assistant, source)
    assert changes
    program = tmp_path / name
    program.write_text(changed, encoding="utf-8")
    printed = run(program, installation)
    assert not [text for text in EXPECTED[name] if text not in printed.replace('": "', '":"')], printed


def test_own_example_calls_a_tool_and_reads_its_result(installation: Installation, assistant: str) -> None:
    printed = run(ROOT / "examples" / "tool_calling.py", installation, assistant)
    assert printed == "calls get_weather({'location': 'Paris'})\nIt is 14 degrees and sunny there.\n"
