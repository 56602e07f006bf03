"""Whether another library makes the same tokens of a text: transformers, with which a base is served, and the label builder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from shared.tokenization.tokenizer import Tokenizer

COMPARED_TEXT = " Two  words\n\n\tand Ångström, e\u0301, 数据 🙂, don't 12345 x_y(): \n"
"""Where tokenizers differ: case, white space, accents, scripts, digits."""
TAKE_AS_IT_IS = (
    'Set "tokenizer_class": "PreTrainedTokenizerFast" in the model\'s tokenizer_config.json, so that transformers takes tokenizer.json'
    " as it is, and add the base again."
)
"""Remedy: a class of a family puts its own rules in the place of tokenizer.json's."""


def first_difference(
    tokenizer: Tokenizer, encode: Callable[[str], Sequence[int]], texts: Iterable[str] = ()
) -> str | None:
    """The first text of which another library makes other tokens; None where there is no such text.

    Args:
        tokenizer: the base's, as the label builder reads it.
        encode: the other library's token ids of a text, without special tokens that the text does not hold.
        texts: compared after a text in which tokenizers differ, and the base's template.
    """
    compared = [COMPARED_TEXT, tokenizer.template.text, *texts]
    return next((text for text in compared if tokenizer.encode(text).ids != list(encode(text))), None)
