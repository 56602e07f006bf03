"""The Modelfile follows Ollama's grammar, for the adapter's merged model or its base; any other folder is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.export.download import Downloaded
from cli.export.formats import Format, write
from cli.export.handoff import HANDOFF_NAME
from cli.export.ollama.modelfile import OllamaModel, plan_model
from shared.artifacts.manifests import MODEL_MANIFEST_NAME, AdapterManifest, ModelManifest
from shared.errors import ArtifactInvalid, Code, InvalidRequest
from shared.hashing import digest_file
from shared.tokenization.tokenizer import Tokenizer
from tests.support.modelfile_grammar import read_modelfile
from tests.support.tiny_base import write_base

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a sampling of its own."""
    folder = write_base(tmp_path_factory.mktemp("ollama") / "base", **LLAMA)
    (folder / "generation_config.json").write_text(
        json.dumps({"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05})
    )
    return folder


@pytest.fixture
def manifest(stored: Downloaded, base: Path) -> AdapterManifest:
    """Manifest of an adapter that was trained on that base."""
    digests = {path.name: digest_file(path) for path in base.iterdir()}
    template = Tokenizer.load(base).template.digest
    return stored.manifest.model_copy(update={"base_digests": digests, "template_digest": template})


@pytest.fixture
def merged(base: Path, manifest: AdapterManifest, tmp_path: Path) -> Path:
    """Files as a merge leaves them, here with equal weights, and the manifest that names base and adapter."""
    folder = tmp_path / "merged"
    shutil.copytree(base, folder)
    record = ModelManifest(
        base_model="tiny",
        base_digests=manifest.base_digests,
        adapter_id=manifest.adapter_id,
        files={path.name: digest_file(path) for path in folder.iterdir()},
    )
    (folder / MODEL_MANIFEST_NAME).write_bytes(record.to_bytes())
    return folder


def export(found: Downloaded, target: Path, model: OllamaModel) -> list[tuple[str, str, object]]:
    target.mkdir()
    write(found, target, Format.OLLAMA, None, model)
    (found.folder / HANDOFF_NAME).unlink()
    return read_modelfile((target / "Modelfile").read_text(encoding="utf-8"))


def test_merged_model_is_all_that_ollama_needs(
    stored: Downloaded, manifest: AdapterManifest, merged: Path, tmp_path: Path
) -> None:
    model = plan_model(merged, manifest, None)
    instructions = export(stored, tmp_path / "out", model)
    assert instructions[:2] == [("FROM", "", str(merged)), ("TEMPLATE", "", model.template)]
    assert instructions[2:] == [
        ("PARAMETER", "temperature", 0.6),
        ("PARAMETER", "top_p", 1.0),
        ("PARAMETER", "top_k", 20),
        ("PARAMETER", "min_p", 0.0),
        ("PARAMETER", "repeat_penalty", 1.05),
        ("PARAMETER", "stop", "<|im_end|>"),
    ]
    handoff = json.loads((tmp_path / "out" / HANDOFF_NAME).read_bytes())
    assert (handoff["backend_family"], handoff["artifact_dir"]) == ("ollama", ".")
    assert "ollama create" in handoff["notes"]


def test_base_takes_the_adapter_next_to_it(
    stored: Downloaded, manifest: AdapterManifest, base: Path, tmp_path: Path
) -> None:
    instructions = export(stored, tmp_path / "out", plan_model(base, manifest, None))
    assert instructions[:2] == [("FROM", "", str(base)), ("ADAPTER", "", "./adapter")]
    weights = tmp_path / "out" / "adapter" / "model.safetensors"
    assert digest_file(weights) == stored.manifest.files["adapter_model.safetensors"]
    assert (weights.parent / "adapter_config.json").is_file()


def test_what_was_converted_elsewhere_is_named_instead(manifest: AdapterManifest, merged: Path) -> None:
    config = json.loads((merged / "config.json").read_text()) | {"architectures": ["Qwen3ForCausalLM"]}
    (merged / "config.json").write_text(json.dumps(config))
    record = ModelManifest.model_validate_json((merged / MODEL_MANIFEST_NAME).read_bytes())
    files = record.files | {"config.json": digest_file(merged / "config.json")}
    (merged / MODEL_MANIFEST_NAME).write_bytes(record.model_copy(update={"files": files}).to_bytes())
    with pytest.raises(InvalidRequest, match="does not convert Qwen3ForCausalLM") as refused:
        plan_model(merged, manifest, None)
    assert refused.value.code == Code.OLLAMA_MODEL_UNSUPPORTED
    assert "--from" in refused.value.remedy
    assert plan_model(merged, manifest, "./support-q8.gguf").source == "./support-q8.gguf"


def _changed(folder: Path) -> None:
    (folder / "generation_config.json").write_text("{}")


def _of_another(folder: Path) -> None:
    record = ModelManifest.model_validate_json((folder / MODEL_MANIFEST_NAME).read_bytes())
    other = record.model_copy(update={"adapter_id": f"other@{'0' * 64}"})
    (folder / MODEL_MANIFEST_NAME).write_bytes(other.to_bytes())


@pytest.mark.parametrize(("spoil", "reason"), [(_changed, "generation_config.json"), (_of_another, "other@")])
def test_folder_that_is_not_what_was_merged_is_refused(
    manifest: AdapterManifest, merged: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    spoil(merged)
    with pytest.raises(InvalidRequest, match=reason) as refused:
        plan_model(merged, manifest, None)
    assert refused.value.code == Code.OLLAMA_MODEL_UNSUPPORTED


def test_another_base_is_refused(stored: Downloaded, base: Path) -> None:
    with pytest.raises(ArtifactInvalid) as refused:
        plan_model(base, stored.manifest, None)
    assert refused.value.code == Code.ADAPTER_BASE_MISMATCH


@pytest.mark.parametrize("source", ["two\nlines", "zero\u200bwidth", '"quoted', " space"])
def test_what_a_modelfile_cannot_hold_is_refused(manifest: AdapterManifest, merged: Path, source: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot hold"):
        plan_model(merged, manifest, source)


def with_bos(folder: Path, template: str) -> None:
    """Files of a tokenizer that asks for a BOS, and a template."""
    config = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(template)


def test_stops_are_the_added_tokens_among_the_ends(manifest: AdapterManifest, base: Path, tmp_path: Path) -> None:
    """The template's own, though no config file names it; and no text of answers, though one names its id."""
    folder = shutil.copytree(base, tmp_path / "base")
    tokenizer = Tokenizer.load(folder)
    letter = tokenizer.backend.token_to_id("a")
    start = tokenizer.backend.token_to_id("<|im_start|>")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_start|>"}))
    (folder / "chat_template.jinja").write_text(tokenizer.template.text)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [letter, start]}))
    digests = {path.name: digest_file(path) for path in folder.iterdir()}
    model = plan_model(folder, manifest.model_copy(update={"base_digests": digests}), None)
    stops = [value for name, value in model.parameters if name == "stop"]
    assert sorted(stops) == ['"<|im_end|>"', '"<|im_start|>"']


TURNS = "{% for m in messages %}{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"


@pytest.mark.parametrize("start", ["{{ bos_token }}", ""])
def test_bos_is_written_once(manifest: AdapterManifest, base: Path, tmp_path: Path, start: str) -> None:
    """Ollama writes it where the tokenizer asks for one; a template that has none of its own was trained without."""
    folder = tmp_path / "base"
    shutil.copytree(base, folder)
    with_bos(folder, start + TURNS)
    digests = {path.name: digest_file(path) for path in folder.iterdir()}
    template = Tokenizer.load(folder).template.digest
    manifest = manifest.model_copy(update={"base_digests": digests, "template_digest": template})
    if start:
        assert plan_model(folder, manifest, None).template.startswith("{{ range")
        return
    with pytest.raises(InvalidRequest, match="would write") as refused:
        plan_model(folder, manifest, None)
    assert refused.value.code == Code.OLLAMA_TEMPLATE_UNSUPPORTED
