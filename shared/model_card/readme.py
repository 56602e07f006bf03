"""The README.md of a stored adapter, from the records of adapter and job: equal records give equal bytes.

It leaves out the machine and the clock, which the trainer's own card names; it includes measurements after the
training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from shared.artifacts.manifests import AdapterManifest, ParentRef
from shared.base_models.catalog import HubSource
from shared.contract.values import describe_arguments
from shared.hashing import digest_json
from shared.model_card.common_sections import answers_of_models, attribution, front_matter, heading, limits
from shared.model_card.evaluation_section import evaluation_section
from shared.model_card.markdown import inline, started_from, table
from shared.model_card.recipe import used_values
from shared.model_card.self_evaluation import KEY, SelfEvaluation

RECIPE = {
    "adapter": ("rank", "alpha", "dropout", "target_modules"),
    "exec": ("epochs", "batch_size", "grad_accum", "learning_rate", "warmup_steps", "weight_decay", "seq_len", "seed"),
}
"""Fields of the contract that the card shows; its digest covers all."""


class CardReceipt(BaseModel):
    """A receipt, as on the card."""

    model_config = ConfigDict(frozen=True)
    id: str
    policy: str
    policy_digest: str
    passed: bool
    digest: str


class AdapterRecord(BaseModel):
    """Records of a stored adapter.

    Attributes:
        license: the base's licence, from the catalogue.
        repository: the base's hub repository, from the catalogue; None if its files came from elsewhere.
        job: the job that made the adapter: its ``plan``, ``contract`` and ``result``; None if no job of this tenant
            made it.
        certificates: certificates by replica; see docs/certificates.md.
        receipts: outcomes of judging it by policies, newest first: id, policy, outcome, expiry.
        ancestors: the adapters that it was continued from, its parent first, as far as they are recorded.
    """

    model_config = ConfigDict(frozen=True)
    manifest: AdapterManifest
    metrics: dict[str, Any]
    certificates: dict[str, Any]
    license: str | None = None
    repository: HubSource | None = None
    job: dict[str, Any] | None = None
    receipts: tuple[CardReceipt, ...] = ()
    ancestors: tuple[ParentRef, ...] = ()


def write_readme(record: AdapterRecord) -> str:
    """Write the card. The Hugging Face hub reads its front matter."""
    manifest, provenance = record.manifest, record.manifest.provenance
    repository = record.repository.repo if record.repository else None
    base = (provenance and provenance.upstream_model_id) or repository or manifest.base_model
    license_class = (provenance and provenance.license_class) or record.license
    blocks = [front_matter(base, license_class, manifest.adapter_method.value)]
    blocks += [heading(manifest, manifest.step), _base(record)]
    if start := started_from(record.ancestors):
        blocks.append(start)
    if record.job:
        blocks += [_data(record.job["plan"]), _answers(manifest), _recipe(record.job, record.manifest)]
    if evaluation := _evaluation(record.metrics):
        blocks.append(evaluation_section(evaluation))
    blocks += [_certificates(record.certificates), _lineage(record), _limits(record.manifest)]
    return "\n".join(blocks)


def _base(record: AdapterRecord) -> str:
    manifest, provenance = record.manifest, record.manifest.provenance
    rows = [
        ("name", manifest.base_model),
        *([("hub repository", f"{hub.repo}, commit {hub.revision}")] if (hub := record.repository) else []),
        ("licence", (provenance and provenance.license_class) or record.license or "not stated"),
        ("SHA-256 of its files' digests", digest_json(manifest.base_digests)),
        ("SHA-256 of its chat template", manifest.template_digest),
        *([("tokens that end an answer", " ".join(ends))] if (ends := _end_tokens(record.certificates)) else []),
    ]
    text = "\n## Base model\n\n" + table(rows)
    if manifest.template_arguments:
        text += f"\nChats are written, and answers asked for, with {inline(describe_arguments(manifest.template_arguments))}.\n"
    if provenance and provenance.attribution_required:
        text += attribution(provenance.upstream_model_id or manifest.base_model, provenance.license_class)
    return text


def _end_tokens(certificates: Mapping[str, Any]) -> list[str]:
    """Return the end tokens of every replica that measured the adapter; the base's config files may lack them."""
    reports = (certificate.get("stop") or {} for certificate in certificates.values())
    return list(dict.fromkeys(token for report in reports for token in report.get("tokens", ())))


def _data(plan: Mapping[str, Any]) -> str:
    rows: list[tuple[str, object]] = []
    for kind in ("train", "validation", "replay"):
        if file := plan.get(kind):
            rows += [(f"{kind}: rows", file["rows"]), (f"{kind}: SHA-256 of the file", file["sha256"])]
    rows.append(("rows held out to validate", plan.get("validation_rows", 0)))
    return "\n## Data\n\n" + table(rows)


def _answers(manifest: AdapterManifest) -> str:
    return answers_of_models(manifest.provenance.answer_models if manifest.provenance else None)


def _recipe(job: Mapping[str, Any], manifest: AdapterManifest) -> str:
    # A job without a result, or of an earlier release, has only the plan's number: an upper bound.
    planned = job.get("result", {}).get("planned_steps") or job["plan"].get("optimizer_steps") or manifest.step
    contract = used_values(job["contract"], steps=manifest.step, planned=planned)
    rows = [
        (f"{section}.{field}", contract[section][field])
        for section, fields in RECIPE.items()
        for field in fields
        if contract.get(section, {}).get(field) is not None
    ]
    return "\n## Recipe\n\n" + table([*rows, ("SHA-256 of the contract", manifest.contract_digest)])


def _evaluation(metrics: Mapping[str, Any]) -> SelfEvaluation | None:
    try:
        return SelfEvaluation.model_validate(metrics[KEY])
    except (KeyError, ValidationError):  # an earlier release made it
        return None


def _certificates(certificates: Mapping[str, Any]) -> str:
    if not certificates:
        return "\n## Certificates\n\nNo serving replica has measured this adapter.\n"
    rows: list[Sequence[object]] = [
        tuple(_certificate(number, certificate)) for number, certificate in enumerate(certificates.values(), 1)
    ]
    head = ("replica", "result", "effect (nats)", "engine error (nats)", "base shift (nats)")
    warnings = dict.fromkeys(
        warning for certificate in certificates.values() for warning in certificate.get("warnings", [])
    )
    return (
        f"\n## Certificates\n\nMeasured on each replica that served it before it was published.\n\n{table(rows, head)}"
        + "".join(f"\n> **Warning.** {inline(warning)}\n" for warning in warnings)
    )


def _certificate(number: int, certificate: Mapping[str, Any]) -> Iterator[str]:
    yield str(number)  # only the operator may know a replica's address
    failed = certificate.get("failed") or []
    yield f"failed: {', '.join(failed)}" if failed else "passed"
    measured = {**certificate, **(certificate.get("parity") or {})}
    for key in ("effect_rms_nats", "engine_error_rms_nats", "base_shift_rms_nats"):
        value = measured.get(key)
        yield "not measured" if value is None else f"{value:.3g}"


def _lineage(record: AdapterRecord) -> str:
    """Write the adapter's provenance: digests of all inputs, the code that trained, and its receipts."""
    manifest, rows = record.manifest, []
    rows += [(f"{source}: SHA-256", digest) for source, digest in (manifest.source_digests or {}).items()]
    rows += [("contract: SHA-256", manifest.contract_digest)]
    if lineage := manifest.lineage:
        rows += [
            ("Mens", lineage.code_version + (f", commit {lineage.code_commit}" if lineage.code_commit else "")),
            ("sources: SHA-256", lineage.code_digest),
            ("packages", ", ".join(f"{name} {number}" for name, number in lineage.packages.items())),
            ("all packages: SHA-256", lineage.environment_digest),
        ]
    rows += [
        (
            f"receipt {receipt.id}",
            f"{'passed' if receipt.passed else 'failed'}, policy {receipt.policy} {receipt.policy_digest}; SHA-256 {receipt.digest}",
        )
        for receipt in record.receipts
    ]
    return "\n## Lineage\n\n" + table(rows)


def _limits(manifest: AdapterManifest) -> str:
    points = [
        (
            f"The adapter belongs to {inline(manifest.base_model)} as its digests name it; it does not work on any other "
            f"model."
        ),
        "Safety and bias were not evaluated.",
        "It inherits the base model's limits and the errors in the training data.",
    ]
    return limits(points)
