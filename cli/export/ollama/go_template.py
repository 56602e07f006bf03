"""Writes a chat form as an Ollama template, in Go's `text/template` (https://pkg.go.dev/text/template).

Ollama passes ``.Messages``, each with ``.Role`` and ``.Content``, with turns of one role joined. White space in the
template is output, so no action here trims any, and the template contains no line breaks for layout.
"""

from __future__ import annotations

import json
import re

from cli.export.ollama.chat_form import ChatForm, TurnForm

UNSUPPORTED_ROLE = '{{ index "no turn of this role here" 99 }}'
"""Fails when it is reached: a turn is refused, and never silently left out. Go's message quotes it."""
NEEDS_QUOTING = re.compile(r'\{|"{3,}|[^\n\t\x20-\x7e]')


def go_template(form: ChatForm, *, late_system: bool) -> str:
    """Return the template, which writes the same as the form, character by character.

    Args:
        late_system: whether a system turn may come after the first turn; otherwise such a turn is an error.
    """
    opening = (
        f'{{{{ if and (eq $i 0) (ne .Role "system") }}}}{literal(form.opening)}{{{{ end }}}}' if form.opening else ""
    )
    joins = form.user_after_system is not None
    roles = [
        ("user", _user(form)),
        ("assistant", _turn(form.assistant) + ("{{ $joined = false }}" if joins else "")),
        *([("system", _system(form, late_system=late_system))] if form.system else []),
    ]
    branches = "".join(
        f'{{{{ {"else if" if number else "if"} eq .Role "{role}" }}}}{text}'
        for number, (role, text) in enumerate(roles)
    )
    return "".join(
        [
            "{{ $joined := false }}" if joins else "",
            literal(form.start),
            "{{ range $i, $_ := .Messages }}",
            opening,
            branches,
            f"{{{{ else }}}}{UNSUPPORTED_ROLE}{{{{ end }}}}{{{{ end }}}}",
            literal(form.prompt),
        ]
    )


def literal(text: str) -> str:
    """Return a string as the template writes it unchanged and a Modelfile can hold it: no brace opens an action, no
    quotes end the template.

    A Modelfile drops characters that are not printable, so they are written as escapes.
    """

    def quoted(match: re.Match[str]) -> str:
        unsafe = match[0]
        if unsafe[0] == '"':  # three in a row would end the template in the Modelfile
            return '{{ `"` }}' * len(unsafe)
        return unsafe if unsafe.isprintable() and unsafe != "{" else f"{{{{ {_go_string(unsafe)} }}}}"

    return NEEDS_QUOTING.sub(quoted, text)


def _go_string(text: str) -> str:
    """Return a Go string. JSON's escapes are also Go's, but characters beyond U+FFFF have one of their own in Go."""
    escaped = (
        f"\\U{ord(character):08x}" if ord(character) > 0xFFFF else json.dumps(character)[1:-1] for character in text
    )
    return f'"{"".join(escaped)}"'


def _turn(form: TurnForm) -> str:
    return f"{literal(form.before)}{{{{ .Content }}}}{literal(form.after)}"


def _user(form: ChatForm) -> str:
    if form.user_after_system is None:
        return _turn(form.user)
    before = (
        f"{{{{ if $joined }}}}{literal(form.user_after_system)}{{{{ else }}}}{literal(form.user.before)}{{{{ end }}}}"
    )
    return f"{before}{{{{ .Content }}}}{literal(form.user.after)}{{{{ $joined = false }}}}"


def _system(form: ChatForm, *, late_system: bool) -> str:
    assert form.system is not None
    joined = "" if form.user_after_system is None else "{{ $joined = true }}"
    refused = "" if late_system else f"{{{{ if gt $i 0 }}}}{UNSUPPORTED_ROLE}{{{{ end }}}}"
    return f"{refused}{_turn(form.system)}{joined}"
