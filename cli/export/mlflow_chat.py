"""The code inside an exported MLflow model: transformers' base with the adapter on it, by peft.

MLflow copies this file into the model's folder and runs it where the model is loaded, so it is self-contained: it
imports no module of Mens, and Mens never imports it.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.pyfunc.model import PythonModel, PythonModelContext

BASE_VARIABLE = "MENS_BASE"
PROBE = "Wq7"
"""An answer that no template changes."""


class AdapterChat(PythonModel):
    """Converts chats to answers. The input has rows of a column ``messages``, each a list of ``{"role", "content"}``;
    the output has one string per row.
    """

    def load_context(self, context: PythonModelContext) -> None:
        """Load base and adapter.

        The base is `model_config["base"]` of `mlflow.pyfunc.load_model`, otherwise the environment's ``MENS_BASE``,
        otherwise the name in the adapter's manifest: a folder, or a name on the Hugging Face hub.

        Raises:
            ValueError: this base's chat template differs from the one that the adapter was trained with.
        """
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = Path(context.artifacts["adapter"])
        manifest = json.loads((folder / "adapter_manifest.json").read_bytes())
        configured = dict(context.model_config or {}).get("base")
        base = configured or os.environ.get(BASE_VARIABLE) or manifest["base_model"]
        self._tokenizer = AutoTokenizer.from_pretrained(base)
        template = hashlib.sha256(str(self._tokenizer.chat_template).encode()).hexdigest()
        if template != manifest["template_digest"]:
            raise ValueError(f"{base} is not the base of this adapter: its chat template differs")
        self._arguments = manifest.get("template_arguments") or {}
        plain = AutoModelForCausalLM.from_pretrained(base, dtype="auto", device_map="auto")
        self._model = PeftModel.from_pretrained(plain, str(folder)).eval()
        self._ends = _end_ids(self._tokenizer, plain.generation_config.eos_token_id)

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> list[str]:
        """Return the answers to chats.

        Args:
            model_input: a table with the column ``messages``.
            params: ``max_new_tokens``, and ``temperature``, where 0 always takes the likeliest token.
        """
        options_of_call = params or {}
        temperature = float(options_of_call.get("temperature", 0.0))
        options: dict[str, Any] = {
            "eos_token_id": self._ends or None,
            "do_sample": temperature > 0,
            "max_new_tokens": int(options_of_call.get("max_new_tokens", 256)),
        }
        if temperature > 0:
            options["temperature"] = temperature
        return [self._answer([dict(turn) for turn in chat], options) for chat in model_input["messages"]]

    def _answer(self, chat: list[dict[str, str]], options: dict[str, Any]) -> str:
        inputs = self._tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True, **self._arguments
        ).to(self._model.device)
        written = self._model.generate(**inputs, **options)
        return str(self._tokenizer.decode(written[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


def _end_ids(tokenizer: Any, configured: int | list[int] | None) -> list[int]:
    """Return the ids at which answers end: those of the base's config files, and the token that its chat template
    writes after an answer.
    """
    chat = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": PROBE}]
    tail = tokenizer.apply_chat_template(chat, tokenize=False).rpartition(PROBE)[2].lstrip()
    tokens = {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}
    written = max((token for token in tokens if token and tail.startswith(token)), key=len, default="")
    listed = configured if isinstance(configured, list) else [configured]
    ends = [*listed, tokenizer.eos_token_id, tokens.get(written)]
    return sorted({end for end in ends if end is not None})


mlflow.models.set_model(AdapterChat())
