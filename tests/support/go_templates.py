"""Ollama's templates executed by Go's real text/template, which helm includes, with the data that Ollama passes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.helm import helm_binary


def render_go(folder: Path, template: str, chats: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return what a template writes for each chat.

    Args:
        folder: empty; a chart around the template is written there.

    Raises:
        ValueError: with Go's message: no template, or it failed.
    """
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: chat\nversion: 0.0.1\n")
    (folder / "templates" / "_chat.tpl").write_text(f'{{{{ define "chat" }}}}{template}{{{{ end }}}}', newline="")
    page = '{{ range .Values.chats }}---\ntext: {{ include "chat" (dict "Messages" .) | toJson }}\n{{ end }}'
    (folder / "templates" / "page.yaml").write_text(page)
    named = [[{"Role": turn["role"], "Content": turn["content"]} for turn in chat] for chat in chats]
    (folder / "values.json").write_text(json.dumps({"chats": named}, ensure_ascii=False))
    command = [str(helm_binary()), "template", "chat", str(folder), "--values", str(folder / "values.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise ValueError(done.stderr)
    return [json.loads(line.removeprefix("text: ")) for line in done.stdout.splitlines() if line.startswith("text: ")]
