"""One model for ``mens models show``: a base, an adapter or what an alias points to, whose it is, and how it was proven."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from cli.aliases import describe_alias, describe_part
from cli.connection import call, find, find_all

NUMBERS = {"effect": "effect_rms_nats", "engine error": "engine_error_rms_nats", "base shift": "base_shift_rms_nats"}
"""What is told of a certificate, in nats; docs/certificates.md says what they mean."""


def look_up(name: str) -> dict[str, Any]:
    """A model by what ``model`` would say, or an adapter that cannot be asked; ends the command when there is none.

    Returns:
        ``model``: as the list of models has it; None for an adapter that is not published. ``adapters``: the adapter, or
        all that the alias asks; none for a base. ``aliases``: those that ask one of the adapters.
    """
    model = find(f"/v1/models/{quote(name, safe='')}")
    if model and model["mens"]["kind"] == "base":
        return {"model": model, "adapters": [], "aliases": []}
    aliases = find_all("/v1/aliases")
    ids = next((_asked(alias) for alias in aliases if alias["name"] == name), [name])
    pointing = [alias for alias in aliases if any(describe_part(alias, adapter_id) for adapter_id in ids)]
    return {"model": model, "adapters": [_adapter(adapter_id) for adapter_id in ids], "aliases": pointing}


def describe(name: str, found: dict[str, Any]) -> str:
    """What was looked up, for people: a paragraph for the base or alias, and one for each adapter."""
    aliases = found["aliases"]
    blocks = [] if found["adapters"] else [_describe_base(found["model"])]
    blocks += [_describe_alias(alias) for alias in aliases if alias["name"] == name]
    blocks += [_describe_adapter(adapter, aliases) for adapter in found["adapters"]]
    return "\n\n".join("\n".join(block) for block in blocks)


def _asked(alias: dict[str, Any]) -> list[str]:
    return [target["adapter"] for target in (*alias["targets"], *filter(None, [alias["shadow"]]))]


def _adapter(adapter_id: str) -> dict[str, Any]:
    """An adapter's record. When there is none, the API's error is that of the models, of which a base is one."""
    record: dict[str, Any] = find(f"/v1/adapters/{quote(adapter_id, safe='')}") or call(
        "GET", f"/v1/models/{quote(adapter_id, safe='')}"
    )
    return record


def _describe_base(model: dict[str, Any]) -> Iterator[str]:
    yield f"{model['id']}  base model of the catalogue, for every tenant"
    yield f"digest   {model['mens']['digest']}"


def _describe_alias(alias: dict[str, Any]) -> Iterator[str]:
    yield f"{alias['name']}  alias"
    yield f"tenant   {alias['tenant']}"
    yield f"moved    {alias['moved_at'][:19]}: {describe_alias(alias)}"


def _describe_adapter(adapter: dict[str, Any], aliases: list[dict[str, Any]]) -> Iterator[str]:
    parts = filter(None, (describe_part(alias, adapter["id"]) for alias in aliases))
    yield f"{adapter['id']}  {'adapter' if adapter['final'] else 'checkpoint'}, {adapter['state']}"
    yield f"base     {adapter['base_model']}"
    yield f"tenant   {adapter['tenant']}"
    yield f"job      {adapter['job_id']}, step {adapter['step']}"
    yield f"aliases  {', '.join(parts) or 'none'}"
    for name, certificate in adapter["certificates"].items():
        yield f"proof    {name}: {_describe_certificate(certificate)}"
    if not adapter["certificates"]:
        yield "proof    none: no replica has measured it"


def _describe_certificate(certificate: dict[str, Any]) -> str:
    failed = ", ".join(certificate["failed"])
    measured = certificate | certificate["parity"]
    numbers = (f"{name} {_nats(measured[key])}" for name, key in NUMBERS.items())
    return f"{f'failed ({failed})' if failed else 'passed'}; {', '.join(numbers)}"


def _nats(value: float | None) -> str:
    return "not taken" if value is None else f"{value:.3g} nats"
