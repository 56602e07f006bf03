"""The real vLLM's prefix cache: a cached prompt is reused only for the same tenant."""

from __future__ import annotations

import re
from typing import Any

import httpx

from tests.support.waiting import eventually
from tests.system.loop import BASE, Installation

PROMPT = list(range(20, 180))
"""At least one block of the cache; no other test sends this prompt."""


def counted(installation: Installation, what: str) -> float:
    """Tokens of prompts that were ``queries`` of the cache or ``hits`` in it so far."""
    environment = installation.stack.settings
    headers = {"Authorization": f"Bearer {environment['MENS_METRICS_KEY']}"}
    text = httpx.get(f"{environment['MENS_SERVING_URLS']}/metrics", headers=headers, timeout=30, trust_env=False).text
    found = re.findall(rf"^vllm:prefix_cache_{what}_total\{{.*\}} ([\d.e+]+)", text, re.MULTILINE)
    assert found
    return sum(map(float, found))


def test_cached_prompt_is_found_by_its_tenant_alone(installation: Installation) -> None:
    secrets: dict[str, Any] = {}
    for tenant in ("acme", "other"):
        body = {"name": "salt", "role": "viewer", "tenant": tenant}
        secrets[tenant] = installation.call("POST", "/v1/keys", json=body)["secret"]

    def found(tenant: str, **more: Any) -> float:
        queries, hits = (counted(installation, what) for what in ("queries", "hits"))
        headers = {"Authorization": f"Bearer {secrets[tenant]}"}
        body = {"model": BASE, "prompt": PROMPT, "max_tokens": 1} | more
        installation.call("POST", "/v1/completions", json=body, headers=headers)
        eventually(lambda: counted(installation, "queries") >= queries + len(PROMPT))
        return counted(installation, "hits") - hits

    assert found("acme") == 0
    assert found("acme") > 100
    assert found("other") == 0, "nor by the time it takes"
    assert found("other") > 100
    assert found("acme", cache_salt="mine") == 0
    assert found("acme", cache_salt="mine") > 100
    assert found("other", cache_salt="mine") == 0
