"""Training rows whose answers contain code."""

from __future__ import annotations

GOOD = "Here:\n```python\ndef add(a, b):\n    if a:\n        return a + b\n    return b\n```\n"


def row(answer: str, **labels: object) -> dict[str, object]:
    return {"prompt": "Write it.", "response": answer, **labels}
