"""A strict parser of Modelfiles, written from Ollama's reference (docs.ollama.com/modelfile), without code of ours.

Each line is an instruction: a known word, white space, an argument. The argument is unquoted, in double quotes, or in
triple double quotes; only the last form may contain line breaks. Text that Ollama would silently skip (an unprintable
character, text after closing quotes) is an error here.
"""

from __future__ import annotations

import re

INSTRUCTIONS = {"FROM", "PARAMETER", "TEMPLATE", "SYSTEM", "ADAPTER", "LICENSE", "MESSAGE", "REQUIRES"}
PARAMETERS = {
    "num_ctx": int, "repeat_last_n": int, "repeat_penalty": float, "temperature": float, "seed": int, "stop": str,
    "num_predict": int, "top_k": int, "top_p": float, "min_p": float,
}  # fmt: skip
ARGUMENT = re.compile(
    r'"""(?P<block>.*?)"""(?!")[ \t]*\n|"(?P<quoted>[^"\n]*)"[ \t]*\n|(?P<bare>[^"\n][^\n]*)\n', re.DOTALL
)


def read_modelfile(text: str) -> list[tuple[str, str, object]]:
    """Return the instructions as (word, name of a parameter or an empty string, argument).

    Raises:
        ValueError: it is not a Modelfile by the reference.
    """
    if hidden := [one for one in text if not one.isprintable() and one not in "\n\t"]:
        raise ValueError(f"{hidden[0]!r} would be left out")
    found: list[tuple[str, str, object]] = []
    at = 0
    while at < len(text):
        if skipped := re.compile(r"[ \t]*(#[^\n]*)?\n").match(text, at):
            at = skipped.end()
            continue
        word = re.compile(r"([A-Z]+)[ \t]+").match(text, at)
        if word is None or word[1] not in INSTRUCTIONS:
            raise ValueError(f"no instruction at {text[at : at + 40]!r}")
        at, name = word.end(), ""
        if word[1] == "PARAMETER":
            parameter = re.compile(r"([a-z_]+)[ \t]+").match(text, at)
            if parameter is None or parameter[1] not in PARAMETERS:
                raise ValueError(f"no parameter at {text[at : at + 40]!r}")
            at, name = parameter.end(), parameter[1]
        argument = ARGUMENT.match(text, at)
        if argument is None:
            raise ValueError(f"no argument at {text[at : at + 40]!r}")
        at = argument.end()
        value = next(one for one in argument.groups() if one is not None)
        found.append((word[1], name, PARAMETERS[name](value) if name else value))
    if [word for word, _, _ in found].count("FROM") != 1:
        raise ValueError("there must be one FROM")
    return found
