"""Sections of both cards of an adapter: the trainer's ``MODEL_CARD.md``, and the ``README.md`` of a stored adapter."""

from __future__ import annotations

from collections.abc import Iterable

from shared.artifacts.manifests import AdapterManifest
from shared.counted_nouns import counted
from shared.model_card.markdown import front_matter_of, inline, license_fields, one_line, tags
from shared.model_card.recipe import trained_how


def front_matter(base: str, license_class: str | None, method: str) -> str:
    """Return YAML for the Hugging Face hub.

    Args:
        base: the upstream name of the base model, else its name here.
        method: the adapter's method.
    """
    return front_matter_of(
        [
            ("base_model", one_line(base)),
            ("base_model_relation", "adapter"),
            ("library_name", "peft"),
            ("pipeline_tag", "text-generation"),
            ("tags", tags(method)),
            *license_fields(license_class),
        ]
    )


def heading(manifest: AdapterManifest, steps: int | None = None) -> str:
    """Return the heading, a sentence on the training, and the adapter's id; with its steps where they are given."""
    during = "" if steps is None else f" in {counted(steps, 'step')}"
    return (
        f"\n# {inline(manifest.name)}\n\n"
        f"A LoRA adapter of rank {manifest.rank} for {inline(manifest.base_model)}, {trained_how(manifest)} by Mens{during} with its "
        f"base frozen in {manifest.precision or manifest.quant.base_quant.value}.\n\nAdapter id: `{manifest.adapter_id}`\n"
    )


def attribution(base: str, license_class: str | None) -> str:
    """Return the note on a base whose licence requires attribution."""
    under = f" under its licence ({inline(license_class)})" if license_class else ""
    return f"\n> **Attribution required.** Anyone who publishes this adapter must name {inline(base)}{under}.\n"


def answers_of_models(models: Iterable[str] | None) -> str:
    """Return the note on models of other servers whose answers are training rows; empty without such models."""
    listed = "\n".join(f"> - {inline(model)}" for model in models or ())
    note = "**Answers of models.** Some training rows are answers of models of other servers. Those who generated them state about the terms:"
    return f"\n> {note}\n>\n{listed}\n" if listed else ""


def limits(points: Iterable[str]) -> str:
    """Return the section on the limits, a bullet for each."""
    return "\n## Limits\n\n" + "\n".join(f"- {point}" for point in points) + "\n"
