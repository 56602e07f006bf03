"""Assumptions about the installed vLLM: its arguments, its parsers, its slots, its errors. No server is started.

The golden files for GPUs are parsed here too: without a GPU, a server cannot start with them, but vLLM's parser can
still accept or refuse them.
"""

from __future__ import annotations

import json
import shlex
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api.inference.replicas.client import ENGINE_DEAD
from serving.launch.engine_args import ENTRY_POINT
from serving.launch.parsers import ANSWER, CALLED, CHAT, FUNCTION, QUESTION, TOOLS, Parsers, choose_parsers
from serving.settings import LORA_RANKS, Quantization, ServingSettings
from tests.serving.launch.launches import BASES, CASES, load_tokenizer

GOLDEN = Path(__file__).parents[1] / "serving" / "golden"
PARSED = [name for name in BASES if name != "zephyr-7b"]


@cache
def argument_parser() -> Any:
    """The argument parser that vLLM's server builds (`serving/vllm_server.py`)."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser())


@cache
def golden_argv(name: str) -> tuple[str, ...]:
    """vLLM's arguments of a golden file."""
    command, _, _ = (GOLDEN / f"{name}.txt").read_text().partition("\n\n")
    argv = shlex.split(command)
    assert argv[: len(ENTRY_POINT)] == ENTRY_POINT
    return tuple(argv[len(ENTRY_POINT) :])


def parsed(name: str) -> Any:
    return argument_parser().parse_args(list(golden_argv(name)))


@pytest.mark.parametrize("name", CASES)
def test_argument_parser_accepts_every_argument(name):
    """Names are spelled out, too: the parser accepts a shortened name, and may take it for another one after an upgrade."""
    from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args

    arguments = parsed(name)
    validate_parsed_serve_args(arguments)
    assert arguments.enable_lora
    assert arguments.middleware == ["serving.middleware.guard.GuardMiddleware"]
    assert not arguments.trust_remote_code
    known = {option for action in argument_parser()._actions for option in action.option_strings}
    assert {part for part in golden_argv(name) if part.startswith("--")} <= known


@pytest.mark.parametrize("name", CASES)
def test_sizes_make_a_valid_lora_config(name):
    from vllm.config.lora import LoRAConfig

    arguments = parsed(name)
    sizes = {key: getattr(arguments, key) for key in ("max_loras", "max_cpu_loras", "max_lora_rank")}
    assert LoRAConfig(**sizes).max_cpu_loras == arguments.max_cpu_loras > arguments.max_loras


def test_cache_smaller_than_a_batch_is_refused():
    from vllm.config.lora import LoRAConfig

    with pytest.raises(ValueError, match="max_cpu_loras"):
        LoRAConfig(max_loras=4, max_cpu_loras=3)


def test_ranks_and_quantization_formats_are_vllms():
    from vllm.config.lora import MaxLoRARanks
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

    assert MaxLoRARanks.__args__ == LORA_RANKS
    assert set(Quantization.__args__) <= set(QUANTIZATION_METHODS)
    assert "bitsandbytes" not in QUANTIZATION_METHODS


@pytest.fixture(params=PARSED)
def reading(request, tmp_path) -> SimpleNamespace:
    """A base's tokenizer in our form and in vLLM's, and the parser that vLLM makes of our choice."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.parser_manager import ParserManager
    from vllm.tokenizers import get_tokenizer

    ours = load_tokenizer(BASES[request.param], tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(BASES[request.param].config))
    theirs = get_tokenizer(str(tmp_path))
    chosen = choose_parsers(ServingSettings(serving_base="b"), ours)
    kind = ParserManager.get_parser(chosen.tool, chosen.reasoning, True, "b", tokenizer=theirs)

    def read(text: str) -> Any:
        request = ChatCompletionRequest(model="b", messages=[{"role": "user", "content": "?"}], tools=TOOLS)
        ids = theirs.encode(text, add_special_tokens=False)
        return kind(theirs, request.tools).parse(text, request, enable_auto_tools=True, model_output_token_ids=ids)

    return SimpleNamespace(ours=ours, chosen=chosen, read=read)


def assistant_text(reading: SimpleNamespace, chat: list[dict[str, Any]], tools: Any = None) -> str:
    """Return the assistant's turn in a chat as the engine returns it: from its header to its end."""
    header = reading.ours.render(chat[:1], add_generation_prompt=True).text.rpartition(QUESTION)[2]
    turn = reading.ours.render(chat, tools).text.rpartition(QUESTION)[2]
    assert turn.startswith(header)
    return turn.removeprefix(header).rstrip().removesuffix(reading.ours.end_token or "")


def test_parser_reads_the_call_that_the_template_writes(reading):
    """A call, written as the model was trained to write it, is parsed into the call."""
    written = assistant_text(reading, CALLED, TOOLS)
    # A base that was trained on no calls: a request may declare tools all the same.
    if FUNCTION not in written:
        assert reading.chosen.tool == "hermes"
        written = json.dumps(CALLED[1]["tool_calls"][0]["function"]).join(["<tool_call>", "</tool_call>"])
    _, content, calls = reading.read(written)
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [(FUNCTION, {"unit": "w7"})]
    assert not (content or "").strip()


def test_answer_without_call_is_content(reading):
    reasoning, content, calls = reading.read(assistant_text(reading, CHAT))
    assert (content.strip(), calls or []) == (ANSWER, [])
    assert not (reasoning or "").strip()


def test_reasoning_is_separated_from_content(reading):
    if reading.chosen.reasoning is None:
        reasoning, content, _ = reading.read(f"no reasoning, {ANSWER}")
        assert (reasoning, content) == (None, f"no reasoning, {ANSWER}")
        return
    reasoning, content, _ = reading.read(f"<think>\nso\n</think>\n\n{ANSWER}")
    assert (reasoning.strip(), content.strip()) == ("so", ANSWER)


def test_parser_whose_token_is_missing_raises(tmp_path):
    """The reason why `choose_parsers` looks into the vocabulary."""
    from vllm.parser.parser_manager import ParserManager
    from vllm.tokenizers import get_tokenizer

    load_tokenizer(BASES["mens-tiny"], tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(BASES["mens-tiny"].config))
    tokenizer = get_tokenizer(str(tmp_path))
    for tool in ("llama3_json", "mistral"):
        with pytest.raises(TypeError, match="cannot be used with the tokenizer"):
            ParserManager.get_parser(tool, None, True, "b", tokenizer=tokenizer)
    assert choose_parsers(ServingSettings(serving_base="b"), load_tokenizer(BASES["mens-tiny"], tmp_path)) == Parsers(
        "hermes"
    )


class Slots:
    """vLLM's adapter manager without a model: slots and their order, nothing computed.

    Attributes:
        layouts: the adapters by slot, each time the manager passes them to a running batch.
    """

    def __init__(self, slots: int, cached: int) -> None:
        from vllm.lora.model_manager import AdapterLRUCache, LRUCacheLoRAModelManager

        manager = object.__new__(LRUCacheLoRAModelManager)
        manager.lora_config = SimpleNamespace(max_loras=slots, max_cpu_loras=cached)
        manager.modules = {}
        manager.lora_index_to_id = [None] * slots
        manager._registered_adapters = AdapterLRUCache(cached, manager.deactivate_adapter)
        manager._active_adapters = AdapterLRUCache(slots, manager._deactivate_adapter)
        manager._last_mapping = manager._last_slot_layout = None
        self.layouts: list[list[int | None]] = []
        manager._set_adapter_mapping = lambda mapping: self.layouts.append(list(manager.lora_index_to_id))
        self.manager = manager

    def load(self, number: int) -> None:
        self.manager._registered_adapters[number] = SimpleNamespace(id=number, rank=8)
        self.manager.activate_adapter(number)


def test_load_into_a_slot_updates_the_running_batch():
    """Without this a request in flight would be continued with the adapter that took its slot."""
    slots = Slots(2, 4)
    slots.load(1)
    slots.load(2)
    batch = object()
    slots.manager.set_adapter_mapping(batch)
    slots.manager.set_adapter_mapping(batch)
    assert slots.layouts == [[1, 2]], "the same batch on the same slots is updated once"
    slots.load(3)
    slots.manager.set_adapter_mapping(batch)
    assert slots.layouts[1:] == [[3, 2]]


def test_adapter_evicted_from_the_cache_leaves_its_slot():
    slots = Slots(2, 2)
    slots.load(1)
    slots.load(2)
    assert slots.manager.remove_oldest_adapter()
    assert slots.manager.lora_index_to_id == [None, 2]
    assert list(slots.manager.list_adapters()) == [2]


def test_error_of_a_dead_engine_is_recognised():
    """The gateway marks a replica as failed by this error."""
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
    from vllm.v1.engine.exceptions import EngineDeadError

    error = create_error_response(EngineDeadError()).model_dump()
    for content in (json.dumps(error), json.dumps(error, separators=(",", ":"))):
        assert ENGINE_DEAD.search(content.encode())
    assert not ENGINE_DEAD.search(json.dumps({"got": '"message": "EngineCore encountered an issue"'}).encode())
