"""Models of an installation for evaluation: one model behind a name, and its base."""

from __future__ import annotations

from urllib.parse import quote

from cli.client.connection import call, fail


def base_of(name: str) -> str:
    """Return the base of a model, which is the model itself if it is a base.

    Ends the command for an unknown name, and for a split alias, whose answers come from several adapters.
    """
    mens = call("GET", f"/v1/models/{quote(name, safe='')}")["mens"]
    if mens.get("targets"):
        fail(f"the alias {name} is split between several adapters; name one of them.")
    if mens["kind"] == "foreign":
        return base_of(mens["stands_for"]["name"])
    return name if mens["kind"] == "base" else str(mens["base_model"])
