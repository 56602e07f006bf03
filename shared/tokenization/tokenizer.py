"""A base model's tokenizer and chat template, read from its folder; no transformers and no torch.

Token ids equal those of transformers' ``apply_chat_template``: the same `tokenizer.json`, the same added tokens, and no
special tokens except those that the template writes, so a BOS is never written twice. Offsets count characters of the
text and are exact for byte-level vocabularies: white space belongs to the token that holds it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from shared.contract.values import describe_arguments
from shared.errors import Code, InvalidRequest
from shared.hashing import digest_json
from shared.tokenization.chat_template import ChatTemplate, Rendered, Turn
from shared.tokenization.template_arguments import (
    DEFAULT_OPTIONS,
    ChatOptions,
    check_arguments,
    idle_arguments,
    known_arguments,
)

_PROBE = "Wq7"
"""An answer that no template changes, to find the token written after it."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """Token ids of a string, and for each the (start, end) of its characters."""

    ids: list[int]
    offsets: list[tuple[int, int]]


@dataclass(frozen=True)
class Tokenizer:
    """A base's tokenizer with its chat template: from chats to token ids.

    Attributes:
        backend: the `tokenizers` library's tokenizer.
        template: the chat template; ``tool_template`` is used for rows with tools by the few bases that have two.
        end_ids: tokens that end a turn or a document; generation stops at them.
        end_token: the token that the template writes after an assistant's turn; it may differ from the base's EOS.
            None when the template writes none.
        configured_ends: the ``end_ids`` that the base's config files name; other programs stop only at these.
        options: a contract's options for rendering chats.
        embedding_rows: number of rows of the base's embedding, from its config.json; None if that file is missing.
    """

    backend: tokenizers.Tokenizer
    template: ChatTemplate
    tool_template: ChatTemplate | None
    end_ids: frozenset[int]
    end_token: str | None
    configured_ends: frozenset[int]
    options: ChatOptions = DEFAULT_OPTIONS
    embedding_rows: int | None = None

    @staticmethod
    def load(folder: Path, options: ChatOptions = DEFAULT_OPTIONS) -> Tokenizer:
        """Read a model folder.

        Args:
            options: a contract's options for rendering chats.

        Raises:
            InvalidRequest: ``TOKENIZER_NOT_FOUND``: no readable `tokenizer.json`; ``TEMPLATE_UNSUPPORTED``: no chat
                template, or one that is not a template.
        """
        config = _read_json(folder / "tokenizer_config.json")
        special_tokens = _special_tokens(folder, config)
        backend = _load_backend(folder / "tokenizer.json", config, special_tokens)
        sources = stored_templates(folder, config)
        if not sources:
            raise InvalidRequest(
                Code.TEMPLATE_UNSUPPORTED,
                "The base model's tokenizer has no chat template.",
                remedy="Add a chat_template.jinja to the model folder and register the base again.",
                param="model.hf_repo",
            )
        texts = [sources[name] for name in ("default", "tool_use") if name in sources]
        templates = [ChatTemplate(source, special_tokens, options.arguments) for source in texts]
        check_arguments(templates, options.arguments)
        template, tool_template = templates[0], templates[1] if len(templates) > 1 else None
        end_token = _end_of_turn(backend, template)
        named, of_turn = (backend.token_to_id(token or "") for token in (special_tokens.get("eos_token"), end_token))
        configured = frozenset(end for end in (named, *_listed_ends(folder)) if isinstance(end, int))
        end_ids = configured | ({of_turn} if of_turn is not None else set())
        rows = _embedding_rows(folder)
        return Tokenizer(backend, template, tool_template, end_ids, end_token, configured, options, rows)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (64 hex digits) over everything that determines the ids and labels of a chat."""
        content = {
            "backend": hashlib.sha256(self.backend.to_str().encode()).hexdigest(),
            "template": self.template_digest,
            "special_tokens": self.template.special_tokens,
            "end_ids": sorted(self.end_ids),
            "end_token": self.end_token,
        }
        return digest_json(content | self.options.content())

    @cached_property
    def tokens_without_embedding(self) -> dict[int, str]:
        """Tokens by id that have no row in the base's embedding: some were added, and the model was not resized."""
        limit = self.embedding_rows
        if limit is None:
            return {}
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        return dict(sorted((id_, token) for token, id_ in vocabulary.items() if id_ >= limit))

    @property
    def template_digest(self) -> str:
        """Digest of the template, or of both templates."""
        if self.tool_template is None:
            return self.template.digest
        return digest_json([self.template.digest, self.tool_template.digest])

    def render(
        self, messages: Sequence[Turn], tools: Sequence[Turn] | None = None, add_generation_prompt: bool = False
    ) -> Rendered:
        """Render a chat; see :meth:`ChatTemplate.render`."""
        return self.template_for(tools).render(messages, tools, add_generation_prompt)

    @property
    def knows_tools(self) -> bool:
        """Return true if the base's template writes tools or calls: it has one for tools, or contains the word "tool"."""
        return self.tool_template is not None or "tool" in self.template.text

    @property
    def templates(self) -> list[ChatTemplate]:
        """The template, and the one for chats with tools if it differs."""
        return [self.template, *([self.tool_template] if self.tool_template else [])]

    @property
    def argument_names(self) -> list[str]:
        """Names of the arguments that the templates know, in order."""
        return known_arguments(self.templates)

    @property
    def notes(self) -> list[str]:
        """Notes on arguments without effect, if any."""
        arguments = self.options.arguments
        idle = [describe_arguments({name: arguments[name]}) for name in idle_arguments(self.templates, arguments)]
        return [f"The template argument {argument} does not change any chat of this base." for argument in idle]

    def template_for(self, tools: Sequence[Turn] | None) -> ChatTemplate:
        """Return the template for chats with these tools."""
        return self.tool_template if tools and self.tool_template else self.template

    @cached_property
    def omissions(self) -> dict[Hashable, Any]:
        """Parts that the templates leave out, by the shape of a chat: the cache of ``completeness.py``."""
        return {}

    def encode(self, text: str) -> Encoding:
        """Tokenise a string, without adding special tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Tokenise strings, on all cores."""
        encodings = self.backend.encode_batch(list(texts), add_special_tokens=False)
        return [Encoding(encoding.ids, encoding.offsets) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """Decode token ids to a string, special tokens included."""
        return str(self.backend.decode(list(ids), skip_special_tokens=False))


def _load_backend(path: Path, config: dict[str, Any], special_tokens: dict[str, str]) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise _unreadable(f"The base's folder does not contain {path.name}.")
    try:
        backend = tokenizers.Tokenizer.from_buffer(path.read_bytes())
    except Exception as error:
        # The library raises a bare Exception.
        # A tokenizer.json may contain both from its training, and would cut or fill rows silently.
        raise _unreadable(f"The base's {path.name} cannot be read: {error}.") from error
    backend.no_truncation()
    backend.no_padding()
    # Ids do not depend on it, but a ByteLevel post-processor trims white space off the offsets.
    backend.post_processor = processors.Sequence([])
    # As transformers does: tokens of tokenizer_config.json that are missing in tokenizer.json are added.
    token_forms = {repr(token) for token in backend.get_added_tokens_decoder().values()}
    # In the order of their ids, because the library numbers them in the order of adding.
    listed = sorted(config.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0]))
    added = [AddedToken(**fields) for _, fields in listed]
    backend.add_tokens([token for token in added if repr(token) not in token_forms])
    missing = [token for token in special_tokens.values() if backend.token_to_id(token) is None]
    backend.add_tokens([AddedToken(token, special=True, normalized=False) for token in dict.fromkeys(missing)])
    return backend


def _special_tokens(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return special tokens by name; the older special_tokens_map.json is read if the config lists no added tokens."""
    entries = dict(config)
    if "added_tokens_decoder" not in config:
        entries |= _read_json(folder / "special_tokens_map.json")
    named = {name: value for name, value in entries.items() if name.endswith("_token")}
    more = entries.get("extra_special_tokens")
    named |= more if isinstance(more, dict) else {}
    tokens = {name: value.get("content") if isinstance(value, dict) else value for name, value in named.items()}
    return {name: token for name, token in tokens.items() if isinstance(token, str)}


def stored_templates(folder: Path, config: dict[str, Any] | None = None) -> dict[str, str]:
    """Return the chat templates of a folder by name, `default` among them; empty without a default one.

    Args:
        folder: folder of a model, or of an adapter that was saved with its tokenizer; its chat_template.jinja has priority.
        config: content of its tokenizer_config.json, if already read.

    Raises:
        InvalidRequest: ``TOKENIZER_NOT_FOUND``: that file is not JSON.
    """
    config = _read_json(folder / "tokenizer_config.json") if config is None else config
    path = folder / "chat_template.jinja"
    stored = path.read_bytes().decode() if path.is_file() else config.get("chat_template")
    if isinstance(stored, list):
        stored = {entry["name"]: entry["template"] for entry in stored}
    sources = {"default": stored} if isinstance(stored, str) else stored
    if isinstance(sources, dict) and isinstance(sources.get("default"), str):
        return sources
    return {}


def _end_of_turn(backend: tokenizers.Tokenizer, template: ChatTemplate) -> str | None:
    """Return the special token that the template writes after an assistant's answer, found by rendering one."""
    chat = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": _PROBE}]
    try:
        tail = template.render(chat).text.rpartition(_PROBE)[2].lstrip()
    except InvalidRequest:
        return None
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    return max((token for token in added if token and tail.startswith(token)), key=len, default=None)


def _listed_ends(folder: Path) -> list[Any]:
    """Read the EOS tokens of generation_config.json, or else of config.json, as transformers and vLLM do."""
    path = folder / "generation_config.json"
    config = _read_json(path if path.is_file() else folder / "config.json")
    text_config = {} if path.is_file() else config.get("text_config")
    listed = config.get("eos_token_id")
    if listed is None and isinstance(text_config, dict):
        listed = text_config.get("eos_token_id")
    return listed if isinstance(listed, list) else [listed]


def _embedding_rows(folder: Path) -> int | None:
    """Return ``vocab_size`` of a config.json, or of its language part; the preflight compares it with the embedding."""
    config = _read_json(folder / "config.json")
    text = config.get("text_config")
    rows = (text if isinstance(text, dict) else config).get("vocab_size")
    return rows if type(rows) is int else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise _unreadable(f"The base's {path.name} is not JSON: {error}.") from error
    return value if isinstance(value, dict) else {}


def _unreadable(message: str) -> InvalidRequest:
    return InvalidRequest(
        Code.TOKENIZER_NOT_FOUND,
        message,
        remedy="Save the tokenizer with transformers' save_pretrained and register the base again.",
        param="model.hf_repo",
    )
