"""The Modelfile, from which `ollama create` creates a model.

Its grammar is that of https://docs.ollama.com/modelfile: one instruction per line, arguments bare, in quotes, or in
three quotes over several lines. The architectures that Ollama converts are taken from there and from its source,
`convert/convert.go`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cli.export.ollama.chat_form import ChatForm, differences, find_form, takes_late_system
from cli.export.ollama.go_template import go_template
from shared.artifacts.manifests import MODEL_MANIFEST_NAME, AdapterManifest, ModelManifest, verify_base
from shared.base_models.catalog import digest_model_folder
from shared.contract.values import describe_arguments
from shared.errors import Code, InvalidRequest, MensError
from shared.hashing import digest_file
from shared.tokenization.end_tokens import end_token_texts
from shared.tokenization.template_arguments import ChatOptions
from shared.tokenization.tokenizer import Tokenizer

MODELFILE_NAME, ADAPTER_FOLDER = "Modelfile", "adapter"
CONVERTED = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"})
"""Supported architectures that Ollama converts from safetensors."""
CONVERTED_WITH_ADAPTER = frozenset({"LlamaForCausalLM", "MistralForCausalLM"})
"""Architectures among these for which Ollama also converts adapters."""
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""generation_config.json's names and vLLM's defaults. All are written, because Ollama's own defaults differ."""
OLLAMA_NAMES = {"repetition_penalty": "repeat_penalty"}


@dataclass(frozen=True, slots=True)
class OllamaModel:
    """Content of a Modelfile.

    Attributes:
        source: the argument of FROM.
        with_adapter: ``ADAPTER`` is written too, because the source is the base alone.
        template: the argument of TEMPLATE.
        parameters: names and values for PARAMETER, in order.
        differences: features of the base's chat template that this one lacks, in sentences.
    """

    source: str
    with_adapter: bool
    template: str
    parameters: tuple[tuple[str, str], ...]
    differences: tuple[str, ...]


def plan_model(folder: Path, manifest: AdapterManifest, source: str | None) -> OllamaModel:
    """Return the settings that Ollama needs to serve an adapter.

    Args:
        folder: folder of the adapter's merged model, or of the base that it was trained on; every file is checked.
        source: source for Ollama in place of that folder, e.g. a GGUF file made from it; not checked.

    Raises:
        InvalidRequest: ``OLLAMA_MODEL_UNSUPPORTED`` or ``OLLAMA_TEMPLATE_UNSUPPORTED``; the tokenizer's codes.
    """
    merged = _is_merged(folder, manifest)
    _refuse_architecture(folder, with_adapter=not merged, converted=source is not None)
    tokenizer = Tokenizer.load(folder, ChatOptions(manifest.template_arguments or {}))
    if tokenizer.template.digest != manifest.template_digest:
        raise _unsupported("its chat template is not the one that the adapter was trained with")
    form = find_form(tokenizer.template, _added_tokens(tokenizer))
    late_system = takes_late_system(form, tokenizer.template)
    said = differences(form, tokenizer.template)
    if form.system and not late_system:
        said.append("A system turn that is not the first turn is answered with an error.")
    form = _without_bos(form, folder, tokenizer.template.special_tokens.get("bos_token"))
    return OllamaModel(
        source=_one_line(source or str(folder.resolve())),
        with_adapter=not merged,
        template=go_template(form, late_system=late_system),
        parameters=(*_sampling(_json(folder / "generation_config.json")), *_stops(tokenizer)),
        differences=tuple(said),
    )


def write_modelfile(model: OllamaModel, manifest: AdapterManifest) -> str:
    """Return the file's content."""
    lines = [
        f"# {manifest.adapter_id}",
        "# Create it with: ollama create NAME -f Modelfile",
        *(
            [f"# Its chats are written with {describe_arguments(arguments)}."]
            if (arguments := manifest.template_arguments)
            else []
        ),
        *(f"# {sentence}" for sentence in model.differences),
        f"FROM {model.source}",
        *([f"ADAPTER ./{ADAPTER_FOLDER}"] if model.with_adapter else []),
        f'TEMPLATE """{model.template}"""',
        *(f"PARAMETER {name} {value}" for name, value in model.parameters),
    ]
    return "\n".join(lines) + "\n"


def _is_merged(folder: Path, manifest: AdapterManifest) -> bool:
    """Return whether the folder is the adapter's merged model (otherwise its base), after checking every file against
    its record.
    """
    recorded = folder / MODEL_MANIFEST_NAME
    if not recorded.is_file():
        verify_base(manifest, digest_model_folder(folder))
        return False
    try:
        merged = ModelManifest.model_validate_json(recorded.read_bytes())
    except ValueError:
        raise _unsupported(f"its {MODEL_MANIFEST_NAME} cannot be read") from None
    if merged.adapter_id != manifest.adapter_id:
        raise _unsupported(f"it is the merged model of another adapter, {merged.adapter_id}")
    for name, digest in sorted(merged.files.items()):
        if not (folder / name).is_file() or digest_file(folder / name) != digest:
            raise _unsupported(f"{name} has changed since the merge")
    return True


def _refuse_architecture(folder: Path, *, with_adapter: bool, converted: bool) -> None:
    """Refuse architectures that Ollama refuses; for a model that was converted elsewhere, only the adapter counts."""
    architecture = (_json(folder / "config.json").get("architectures") or ["unknown"])[0]
    if not converted and architecture not in CONVERTED:
        raise _unsupported(f"Ollama does not convert {architecture} from safetensors")
    if with_adapter and architecture not in CONVERTED_WITH_ADAPTER:
        raise _unsupported(
            f"Ollama does not convert adapters of {architecture}, and this folder is the base without the adapter"
        )


def _without_bos(form: ChatForm, folder: Path, bos: str | None) -> ChatForm:
    """Return the form without the BOS that Ollama itself writes if tokenizer_config.json requests one."""
    if not bos or not _json(folder / "tokenizer_config.json").get("add_bos_token"):
        return form
    if not form.start.startswith(bos):
        raise InvalidRequest(
            Code.OLLAMA_TEMPLATE_UNSUPPORTED,
            f"Ollama would write {bos} before every chat, but the base's chat template does not begin with exactly "
            "this token.",
            remedy=(
                "Set add_bos_token to false in the tokenizer_config.json of the folder that Ollama builds from, and "
                "pass that folder with --from."
            ),
            param="add_bos_token",
        )
    return replace(form, start=form.start.removeprefix(bos))


def _added_tokens(tokenizer: Tokenizer) -> list[str]:
    return [token.content for token in tokenizer.backend.get_added_tokens_decoder().values() if token.content.strip()]


def _sampling(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return sampling as in vLLM's defaults: the base's own settings, otherwise every token by its probability."""
    values = {name: config[name] if config.get(name) is not None else default for name, default in SAMPLING.items()}
    return [(OLLAMA_NAMES.get(name, name), format(value, "g")) for name, value in values.items()]


def _stops(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Return end tokens as strings, since Ollama knows no ids: only added tokens, because another token's string may
    occur in answers.
    """
    added = set(_added_tokens(tokenizer))
    texts = end_token_texts(tokenizer, tokenizer.end_ids)
    return [("stop", f'"{text}"') for text in texts if text in added and text.isprintable() and '"' not in text]


def _one_line(text: str) -> str:
    """Return an argument of FROM; refuse line breaks and other unprintable characters, which a Modelfile cannot
    express.
    """
    if not text.isprintable() or text != text.strip() or text.startswith('"'):
        raise _unsupported(f"a Modelfile cannot hold the path {text!r}")
    return text


def _json(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_bytes()) if path.is_file() else {}
    return value if isinstance(value, dict) else {}


def _unsupported(reason: str) -> MensError:
    return InvalidRequest(
        Code.OLLAMA_MODEL_UNSUPPORTED,
        f"Ollama cannot build a model from this folder: {reason}.",
        remedy=(
            "Merge the adapter (`mens jobs merge`, `mens base from-merge`) and give that folder with --model-folder. "
            "If Ollama cannot convert "
            "it, create a GGUF file of it with llama.cpp's convert_hf_to_gguf.py and name that with --from."
        ),
        param="--model-folder",
    )
