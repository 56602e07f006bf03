"""Check that another library tokenises as the label builder does: transformers, with which a base is served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from shared.tokenization.tokenizer import Tokenizer

COMPARED_TEXT = " Two  words\n\n\tand Ångström, e\u0301, 数据 🙂, don't 12345 x_y(): \n"
"""Sample in which tokenizers differ: case, white space, accents, scripts, digits."""
ONE_TOKENIZER = (
    'Set "tokenizer_class": "PreTrainedTokenizerFast" in the model\'s tokenizer_config.json, so that transformers takes tokenizer.json as it is,'
    " and add the base again. For Qwen2 and Qwen3.5, transformers ignores that name: if the model was trained with transformers' tokens, save"
    " them as tokenizer.json with `AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)`."
)
"""Remedy: the tokenizer class of a family replaces tokenizer.json's rules by its own."""


def first_difference(
    tokenizer: Tokenizer, encode: Callable[[str], Sequence[int]], texts: Iterable[str] = ()
) -> str | None:
    """Return the first string that another library tokenises differently; None if all agree.

    Args:
        tokenizer: the base's, as the label builder reads it.
        encode: the other library's token ids of a string, without added special tokens.
        texts: compared after the sample string and the base's template.
    """
    compared = [COMPARED_TEXT, tokenizer.template.text, *texts]
    return next((text for text in compared if tokenizer.encode(text).ids != list(encode(text))), None)
