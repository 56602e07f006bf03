"""Expensive grammars on a real vLLM: refused, ended when their caller disconnects, and no other request waits for them."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from api.inference.vllm_errors import UNANSWERABLE
from api.inference.vllm_messages import explain
from tests.support.serving_installation import ServingInstallation
from tests.support.vllm_server import VllmServer
from tests.support.waiting import eventually

BOMB = {"type": "object", "properties": {f"p{number}": {} for number in range(8000)}}
"""xgrammar needs some eight seconds for it, with 320 tokens. A replica has no cap on texts; the API has."""
AMBIGUOUS = 'root ::= s\ns ::= s s s s s | s s s s | s s s | s s | "a"'
"""Each further "a" takes longer: the 170th some 0.2 s."""
ACME, OTHER = "a" * 64, "b" * 64


def body(installation: ServingInstallation, salt: str, **more: Any) -> dict[str, Any]:
    return {"model": installation.entry.name, "prompt": "the", "max_tokens": 8, "cache_salt": salt} | more


def compiles(server: VllmServer) -> list[psutil.Process]:
    """Processes in which a grammar is being compiled."""
    children = psutil.Process(server.pid).children()
    return [fork for child in children if "compile_server" in " ".join(child.cmdline()) for fork in child.children()]


def test_bomb_is_refused_and_holds_nobody(
    client: httpx.Client, vllm_server: VllmServer, serving_installation: ServingInstallation
) -> None:
    bomb = body(serving_installation, ACME, structured_outputs={"json": BOMB})
    small = body(serving_installation, OTHER, structured_outputs={"regex": "[a-z]{3}"})
    with vllm_server.client() as other, ThreadPoolExecutor(1) as pool:
        refused = pool.submit(other.post, "/v1/completions", json=bomb)
        (compile_process,) = eventually(lambda: compiles(vllm_server), 120, "the bomb is being compiled")
        # It stands still, so that it is under way however long the small one takes.
        compile_process.suspend()
        try:
            answered = client.post("/v1/completions", json=small)
            assert not refused.done(), "the small one was answered first"
        finally:
            compile_process.resume()
    assert answered.status_code == 200 and answered.json()["choices"][0]["text"].isalpha()
    error = refused.result().json()["error"]
    explained = explain(error["message"], error["param"], bomb)
    assert (refused.result().status_code, explained.code, explained.param) == (
        400,
        "GRAMMAR_TOO_COSTLY",
        "structured_outputs",
    )


def test_caller_who_leaves_ends_the_compile(
    client: httpx.Client, vllm_server: VllmServer, serving_installation: ServingInstallation
) -> None:
    bomb = body(serving_installation, ACME, structured_outputs={"json": BOMB | {"title": "another"}})

    async def ask_and_leave() -> psutil.Process:
        async with httpx.AsyncClient(base_url=vllm_server.url, headers=client.headers, trust_env=False) as leaving:
            asking = asyncio.create_task(leaving.post("/v1/completions", json=bomb, timeout=60))
            (found,) = await asyncio.to_thread(eventually, lambda: compiles(vllm_server), 60, "it is being compiled")
            asking.cancel()
            await asyncio.wait([asking])
        return found

    compile_process = asyncio.run(ask_and_leave())
    eventually(lambda: not compile_process.is_running(), 60, "the compile has ended")
    assert client.post("/v1/completions", json=body(serving_installation, ACME)).status_code == 200


def test_ambiguous_grammar_ends_its_own_request_alone(
    client: httpx.Client, vllm_server: VllmServer, serving_installation: ServingInstallation
) -> None:
    long: dict[str, Any] = {"max_tokens": 220, "min_tokens": 220}
    ambiguous = body(serving_installation, ACME, structured_outputs={"grammar": AMBIGUOUS}, **long)
    response = client.post("/v1/completions", json=ambiguous)
    assert (response.status_code, response.json()["error"]["message"]) == (500, UNANSWERABLE)
    assert "its grammar has taken" in vllm_server.log.read_text()
    sound = body(serving_installation, ACME, structured_outputs={"regex": "(a|b)*"}, **long)
    assert client.post("/v1/completions", json=sound).json()["usage"]["completion_tokens"] == 220


def test_a_valid_schema_that_xgrammars_cache_breaks_is_served(
    client: httpx.Client, serving_installation: ServingInstallation
) -> None:
    digits = body(
        serving_installation, ACME, structured_outputs={"json": {"type": "string", "pattern": "^[3-8]{500}$"}}
    )
    response = client.post("/v1/completions", json=digits)
    assert response.status_code == 200, response.text
    assert set(response.json()["choices"][0]["text"]) <= set('"345678')


def test_xgrammars_cache_still_breaks_long_repetitions() -> None:
    """When this fails, xgrammar is fixed: compile with its cache alone again."""
    from xgrammar import GrammarCompiler, TokenizerInfo

    vocabulary = TokenizerInfo([bytes([number]) for number in range(256)], stop_token_ids=[0])
    schema = json.dumps({"type": "string", "pattern": "^[3-8]{500}$"})
    assert GrammarCompiler(vocabulary, cache_enabled=False).compile_json_schema(schema)
    with pytest.raises(RuntimeError, match="per_rule_fsm_hashes"):
        GrammarCompiler(vocabulary, cache_enabled=True).compile_json_schema(schema)


@pytest.mark.filterwarnings("ignore:max_rollback_tokens is deprecated")
@pytest.mark.parametrize(
    ("constraint", "kind"),
    [
        ({"json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}, "json"),
        ({"regex": r"\d+"}, "regex"),
        ({"choice": ["yes", "no"]}, "ebnf"),
        ({"grammar": 'root ::= "a" | "b"'}, "ebnf"),
        ({"grammar": 'start: "a" | "b"'}, "lark"),
        (
            {
                "structural_tag": json.dumps(
                    {"structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}], "triggers": ["<f"]}
                )
            },
            "legacy_tag",
        ),
        (
            {
                "structural_tag": json.dumps(
                    {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"type": "object"}}}
                )
            },
            "structural_tag",
        ),
    ],
)
def test_check_compiles_what_the_engine_compiles(constraint: dict[str, Any], kind: str) -> None:
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend, validate_xgrammar_grammar
    from vllm.v1.structured_output.request import get_structured_output_key
    from xgrammar import GrammarCompiler, TokenizerInfo

    from serving import vllm_white_space_patch
    from serving.grammars.compile_server import compile_grammar
    from serving.grammars.vllm_patch import grammar_of

    vllm_white_space_patch.apply_patch()
    compiler = GrammarCompiler(TokenizerInfo([bytes([number]) for number in range(256)], stop_token_ids=[0]))
    backend = XgrammarBackend.__new__(XgrammarBackend)
    backend.compiler, backend.vocab_size = compiler, 256
    backend.disable_any_whitespace, backend.num_speculative_tokens = False, 0

    grammar = grammar_of(StructuredOutputsParams(**constraint))
    assert grammar is not None and grammar.kind == kind
    checked = compile_grammar(compiler, grammar.kind, grammar.text, vllm_white_space_patch.MAX_WHITE_SPACE)
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**constraint))
    validate_xgrammar_grammar(params)
    engines = backend.compile_grammar(*get_structured_output_key(params.structured_outputs))
    assert checked.serialize_json() == engines.ctx.serialize_json()


def test_vllm_still_needs_the_patch() -> None:
    """When this fails, vLLM ends compiles itself: look whether serving/grammars is still needed."""
    import inspect

    from vllm.v1.structured_output import StructuredOutputManager

    assert "self.executor.submit(self._create_grammar, request)" in inspect.getsource(
        StructuredOutputManager.grammar_init
    )
