"""Each base family in the README: a tiny base of it is built, tuned, certified and served, in a separate installation.

Served answers are compared, word by word, with those of transformers and PEFT alone, which load the adapter's stored
files on the base's. For Qwen3.5, the family of the default base, the test includes a trainer that is killed and
resumes, a merge, and serving the merged model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cli.commands.bases.derived import merged_base
from cli.standalone.base_sources import add
from cli.standalone.stack import Stack, running_stack
from shared.artifacts.manifests import WEIGHTS_NAME
from shared.base_models.catalog import LocalSource
from shared.base_models.families import DELTA_NET, GATED_MIXER, GATED_MLP, SPECS, Family
from shared.base_models.weights import read_tensors
from shared.settings import Settings
from tests.support import sentencepiece
from tests.support.template_families import TEMPLATES
from tests.support.waiting import eventually
from tests.system.loop import ANSWER, IMPATIENCE, QUESTION, ROOT, Installation, mens
from worker.jobs.certificates import ENGINE_ERROR_LIMITS, LOW_PRECISION_LIMIT

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.timeout(900)]

PRETRAINING_STEPS = 40
"""Enough for a base that says one sentence to everything, which is all that is asked of it here."""
QUESTIONS = [QUESTION, "What is LoRA?", "Who are you?", "How do I start a training job?"]
MAX_TOKENS = 48
KIND = re.compile(r"\.layers\.\d+\.(.+)\.lora_[AB]\.weight$")


@dataclass(frozen=True)
class Base:
    """A tiny base as a family's models on the hub are: with what their configs turn on.

    Attributes:
        changes: config keys of the tiny model.
        template: file of a chat template that replaces the tiny base's own.
        sentencepiece: whether its tokenizer is of the kind that older Llama and Mistral models have.
    """

    family: Family
    changes: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None
    composite: bool = False
    sentencepiece: bool = False

    @property
    def dtype(self) -> str:
        """In which it is served on a CPU when nothing else is set."""
        return "bfloat16" if SPECS[self.family].hybrid else "float32"


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # Shorter than the prompts, so that the scaling is at work in them.
    "original_max_position_embeddings": 16,
}
BASES = {
    "qwen2": Base(Family.QWEN2, {"tie_word_embeddings": False}),
    "qwen2.5": Base(Family.QWEN2, template="qwen25"),
    "qwen3": Base(Family.QWEN3, {"tie_word_embeddings": True}),
    # As the hub has it. Without the vision part: tests/vllm/test_qwen3_5.py.
    "qwen3.5": Base(Family.QWEN3_5, composite=True),
    "llama": Base(
        Family.LLAMA,
        {"rope_parameters": LLAMA3_ROPE, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    ),
    # A window that the prompts are longer than.
    "mistral": Base(Family.MISTRAL, {"sliding_window": 8, "tie_word_embeddings": False}, sentencepiece=True),
}
WHOLE_LOOP = "qwen3.5"


def make_base(home: Path, name: str) -> Path:
    """Pretrain a base in the home folder and put it into its catalogue; returns its folder."""
    from worker.pretrain import build_base

    base, folder = BASES[name], home / "bases" / name
    corpus = ROOT / "examples" / "base_corpus.jsonl"
    if base.sentencepiece:
        sentencepiece.build_base(folder, corpus, base.family, PRETRAINING_STEPS, base.changes)
    else:
        build_base(folder, corpus, base.family, PRETRAINING_STEPS, composite=base.composite, changes=base.changes)
    if base.template:
        (folder / "chat_template.jinja").write_text((TEMPLATES / f"{base.template}.jinja").read_text())
    add(Settings(home=home), name, LocalSource(path=str(folder)), None)
    return folder


@contextmanager
def installation_of(home: Path, base: str) -> Iterator[Installation]:
    """A running installation that serves one base."""
    with running_stack(Stack(home, base, environment=IMPATIENCE)) as stack:
        yield Installation(stack)


def adapter_folder(home: Path, adapter_id: str) -> Path:
    """The stored files of an adapter."""
    (folder,) = (home / "storage" / "adapters").glob(f"{adapter_id.rpartition('@')[2]}*")
    return folder


def reference_answers(base: Path, adapter: Path | None, served: Base) -> list[str]:
    """Greedy answers to the questions by transformers and PEFT, in the dtype that is served.

    The class is the one that has the names of the base's files, as any program that is not ours would load them.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

    kind = AutoModelForImageTextToText if served.composite else AutoModelForCausalLM
    model = kind.from_pretrained(base, dtype=getattr(torch, served.dtype)).eval()
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter).eval()
    tokenizer, answers = AutoTokenizer.from_pretrained(base), []
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        with torch.no_grad():
            [ids] = model.generate(**prompt, do_sample=False, max_new_tokens=MAX_TOKENS)
        # What follows the prompt: an answer alone loses the space at its beginning in a tokenizer like SentencePiece's.
        whole, asked = (tokenizer.decode(part, skip_special_tokens=True) for part in (ids, prompt["input_ids"][0]))
        answers.append(whole.removeprefix(asked))
    return answers


def is_offered(installation: Installation, model: str) -> bool:
    """Return whether a base answers: a merged model does once its replica was measured."""
    with installation.connection.client() as client:
        body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 1}
        return client.post("/v1/chat/completions", json=body).status_code == 200


def certificate_of(installation: Installation, adapter_id: str) -> dict[str, Any]:
    """The one replica's certificate of an adapter, which has passed."""
    record = installation.call("GET", f"/v1/adapters/{adapter_id}")
    (certificate,) = record["certificates"].values()
    assert record["state"] == "published" and certificate["passed"], certificate
    return dict(certificate)


def streamed(installation: Installation, model: str) -> str:
    """The answer to the first question, from its pieces."""
    messages: Any = [{"role": "user", "content": QUESTION}]
    pieces = installation.openai().chat.completions.create(
        model=model, messages=messages, temperature=0, max_tokens=MAX_TOKENS, stream=True
    )
    return "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)


def assert_served_as_trained(
    installation: Installation, base: Path, name: str, adapter_id: str, folder: Path | None = None
) -> list[str]:
    """Base and adapter are served as transformers and PEFT compute them; returns the adapter's answers.

    Args:
        folder: the exported adapter; None: its stored files.
    """
    found, served = certificate_of(installation, adapter_id), BASES[name]
    print(json.dumps({"base": name, **found["parity"], "effect": found["effect_rms_nats"]}))
    assert found["base"]["dtype"] == served.dtype
    assert found["template"]["equal"]
    limit = ENGINE_ERROR_LIMITS.get(served.dtype, LOW_PRECISION_LIMIT)
    assert found["parity"]["engine_error_rms_nats"] < limit < found["effect_rms_nats"] / 2
    folder = folder or adapter_folder(installation.stack.home, adapter_id)
    answers = [installation.ask(adapter_id, question) for question in QUESTIONS]
    assert answers == reference_answers(base, folder, served)
    assert [installation.ask(name, question) for question in QUESTIONS] == reference_answers(base, None, served)
    assert ANSWER in answers[0] and ANSWER not in installation.ask(name)
    assert streamed(installation, adapter_id) == answers[0]
    return answers


@pytest.mark.parametrize("name", [name for name in BASES if name != WHOLE_LOOP])
def test_a_base_of_each_family_is_built_tuned_certified_and_served(name: str, tmp_path: Path) -> None:
    base = make_base(tmp_path, name)
    with installation_of(tmp_path, name) as installation:
        job = installation.wait_for_success(installation.train(name="tuned", base=name))
        adapter_id, folder = job["result"]["adapter_id"], tmp_path / "peft"
        done = mens("adapter", "export", adapter_id, "--to", str(folder), home=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert_served_as_trained(installation, base, name, adapter_id, folder)


def test_the_default_bases_family_in_the_whole_loop(tmp_path: Path) -> None:
    """Train over NF4, kill and resume, certify, serve, merge, and serve the merged model; then train over 16 bits.

    The base is composite, like the hub's default one: adapter keys without `language_model` would load without an error
    and have no effect.
    """
    base = make_base(tmp_path, WHOLE_LOOP)
    with installation_of(tmp_path, WHOLE_LOOP) as installation:
        job_id = installation.train(name="tuned", base=WHOLE_LOOP, quant="nf4", checkpoint_every=10)
        installation.wait_for_step(job_id, 25)
        (trainer,) = installation.trainers()
        trainer.kill()
        adapter_id = installation.wait_for_success(job_id)["result"]["adapter_id"]
        assert installation.resumptions(job_id) == 1
        answers = assert_served_as_trained(installation, base, WHOLE_LOOP, adapter_id)
        keys = read_tensors(adapter_folder(tmp_path, adapter_id) / WEIGHTS_NAME)
        assert all(key.startswith("base_model.model.model.language_model.layers.") for key in keys)
        kinds = {found[1] for key in keys if (found := KIND.search(key))}
        assert kinds == {*GATED_MIXER.linears, *DELTA_NET.linears, *GATED_MLP}
        job = installation.wait_for_success(installation.train(name="exact", base=WHOLE_LOOP, quant="none"))
        assert_served_as_trained(installation, base, WHOLE_LOOP, job["result"]["adapter_id"])
        exact, quantised = (
            certificate_of(installation, each)["parity"]["base_shift_rms_nats"]
            for each in (job["result"]["adapter_id"], adapter_id)
        )
        # What is left is the served bfloat16's rounding: measured 0.05 and 0.68.
        assert exact < quantised / 5
        merge = {"kind": "merge", "contract": {"adapter": adapter_id}}
        merged = installation.wait_for_success(installation.call("POST", "/v1/jobs", json=merge)["id"])["result"]
        assert (
            merged["fidelity"]["adapter_divergence"]["mean_kl_nats"]
            < merged["fidelity"]["effect"]["mean_kl_nats"] / 100
        )
    entry = merged_base(Settings(home=tmp_path), merged["model_digest"])
    assert entry is not None
    with installation_of(tmp_path, entry.name) as installation:
        eventually(lambda: is_offered(installation, entry.name), what="the merged model's replica was measured")
        assert [installation.ask(entry.name, question) for question in QUESTIONS] == answers
