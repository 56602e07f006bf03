"""A patch of vLLM's structured output that keeps one request's grammar from delaying other requests.

vLLM compiles grammars in threads of its engine. Such a thread always runs to its end: neither a disconnect of the
caller nor vLLM's own timeout for regular expressions stops it. In addition, at every token the engine's loop computes
which tokens each grammar allows next, for one request after the other; with an ambiguous grammar, each token takes
longer than the one before (vLLM 0.32, xgrammar 0.2). So this patch has four parts:

- The server passes a grammar on to the engine only after a child process has compiled it within its limits.
- The engine compiles several grammars at once, so that other requests do not wait for one that is within the limits.
- A grammar that xgrammar's cache of compiled parts cannot hold, such as a JSON string of `^[3-8]{500}$`, is compiled
  without that cache.
- The engine ends a request whose grammar takes too much of the engine's time.
"""

from __future__ import annotations

import copy
import functools
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend, XgrammarGrammar
from vllm.v1.structured_output.request import get_structured_output_key
from vllm.v1.structured_output.utils import choice_as_grammar, grammar_is_likely_lark
from xgrammar import GrammarCompiler

from serving.grammars.compile_check import CheckLimits, CompileCheck, Grammar, GrammarTooCostly
from serving.vllm_white_space_patch import MAX_WHITE_SPACE, bounded
from shared.replicas import TENANT_SALT_CHARS

COMPILING_THREADS = 4
BURST_SECONDS = 1.0
"""Processor time that a request's grammar may take in the engine's loop, in addition to an allowance for each token.
"""
TOKEN_SECONDS = 0.01

log = logging.getLogger("vllm.mens.grammars")


def apply_patch(seconds: float) -> None:
    """Add the limits to vLLM in this process. Idempotent.

    Args:
        seconds: processor time that one grammar may take to compile.
    """
    if getattr(AsyncLLM.add_request, "checks_grammars", False):
        return
    AsyncLLM.add_request = _with_check(AsyncLLM.add_request, seconds)
    AsyncLLM.add_request.checks_grammars = True
    StructuredOutputManager.__init__ = _with_more_threads(StructuredOutputManager.__init__)
    XgrammarBackend.compile_grammar = _with_uncached_retry(XgrammarBackend.compile_grammar)
    XgrammarGrammar.fill_bitmask = _with_account(XgrammarGrammar.fill_bitmask)
    XgrammarGrammar.accept_tokens = _with_budget(_with_account(XgrammarGrammar.accept_tokens))


def grammar_of(params: StructuredOutputsParams) -> Grammar | None:
    """Return the grammar that the engine will compile for a request; None if the request only requires some JSON
    object, whose grammar costs nothing.
    """
    if params.choice:
        return Grammar("ebnf", choice_as_grammar(params.choice))
    kind, text = get_structured_output_key(params)
    match kind:
        case StructuredOutputOptions.JSON:
            return Grammar("json", text)
        case StructuredOutputOptions.REGEX:
            return Grammar("regex", text)
        case StructuredOutputOptions.GRAMMAR:
            return Grammar("lark" if grammar_is_likely_lark(text) else "ebnf", text)
        case StructuredOutputOptions.STRUCTURAL_TAG:
            tag = bounded(json.loads(text))
            return Grammar("legacy_tag" if "structures" in tag else "structural_tag", json.dumps(tag))
    return None


def _vocabulary(engine: Any) -> str:
    """Return xgrammar's vocabulary as JSON, as the engine's own backend makes it."""
    config = engine.vllm_config
    backend = XgrammarBackend(
        config, tokenizer=engine.input_processor.tokenizer, vocab_size=config.model_config.get_vocab_size()
    )
    return str(backend.compiler.compile_regex("a").tokenizer_info.serialize_json())


def _with_check(add_request: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """Add the check to ``AsyncLLM.add_request``, which vLLM calls for every request before sending it to the engine's
    process.
    """

    @functools.wraps(add_request)
    async def add_checked_request(
        engine: Any, request_id: str, prompt: Any, params: Any, *args: Any, **more: Any
    ) -> Any:
        outputs = params.structured_outputs if isinstance(params, SamplingParams) else None
        if outputs is not None and not outputs.all_constraints_none():
            if not hasattr(engine, "compile_check"):
                limits = CheckLimits(seconds, MAX_WHITE_SPACE)
                engine.compile_check = CompileCheck(functools.partial(_vocabulary, engine), limits)
            salt = prompt.get("cache_salt") if isinstance(prompt, dict) else None
            await _check(engine.compile_check, outputs, caller=(salt or "")[:TENANT_SALT_CHARS])
        return await add_request(engine, request_id, prompt, params, *args, **more)

    return add_checked_request


async def _check(check: CompileCheck, outputs: StructuredOutputsParams, caller: str) -> None:
    try:
        grammar = grammar_of(outputs)
    except (ValueError, TypeError, AttributeError):
        return  # vLLM refuses invalid grammars itself, and says why
    if grammar is not None:
        try:
            await check.check(grammar, caller)
        except GrammarTooCostly as error:
            raise VLLMValidationError(str(error)) from error


def _with_more_threads(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def init_with_more_threads(manager: Any, *args: Any, **more: Any) -> None:
        init(manager, *args, **more)
        if hasattr(manager, "executor"):
            manager.executor.shutdown()
            manager.executor = ThreadPoolExecutor(max_workers=COMPILING_THREADS)

    return init_with_more_threads


def _with_uncached_retry(compile_grammar: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``XgrammarBackend.compile_grammar`` to retry without xgrammar's cache if it fails: the cache does not
    support all repetitions.
    """

    @functools.wraps(compile_grammar)
    def compile_or_again(backend: Any, *args: Any, **more: Any) -> Any:
        try:
            return compile_grammar(backend, *args, **more)
        except RuntimeError as error:
            log.info("A grammar is compiled without xgrammar's cache: %s", error)
            again = copy.copy(backend)
            vocabulary = backend.compiler.compile_regex("a").tokenizer_info
            again.compiler = GrammarCompiler(vocabulary, max_threads=COMPILING_THREADS, cache_enabled=False)
            return compile_grammar(again, *args, **more)

    return compile_or_again


def _with_account(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of a request's grammar to add its processor time to the request's total."""

    @functools.wraps(method)
    def counted(grammar: Any, *args: Any, **more: Any) -> Any:
        began = time.thread_time()
        try:
            return method(grammar, *args, **more)
        finally:
            grammar.seconds_taken = getattr(grammar, "seconds_taken", 0.0) + time.thread_time() - began

    return counted


def _with_budget(accept_tokens: Callable[..., bool]) -> Callable[..., bool]:
    """Wrap ``accept_tokens`` to reject a token when the grammar has taken too much time: vLLM then ends the request."""

    @functools.wraps(accept_tokens)
    def accept_within_budget(grammar: Any, request_id: str, tokens: list[int]) -> bool:
        accepted = accept_tokens(grammar, request_id, tokens)
        allowed = BURST_SECONDS + TOKEN_SECONDS * grammar.num_processed_tokens
        if grammar.seconds_taken <= allowed:
            return accepted
        log.warning(
            "Request %s ends: its grammar has taken %.1f s of the engine's time in %d tokens.",
            request_id,
            grammar.seconds_taken,
            grammar.num_processed_tokens,
        )
        return False

    return accept_within_budget
