"""The switch: moves an alias to the successor, and maps the tuned model's name to the alias. If the gate did not pass,
a reason is required.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import msgspec

from openai_migration.archive.folder import make_private, now, safe_name, write_json
from openai_migration.receipts import MigrationReceipt, read_receipt, receipt_file
from openai_migration.successors.contracts import successor_name
from openai_migration.successors.installation import Installation
from openai_migration.successors.training import trainings_of
from shared.errors import ArtifactInvalid, Code, Conflict
from shared.hashing import digest_file
from shared.statistics.paired import Status

SWITCH = "switch"
MAX_REASON = 500


class Switch(msgspec.Struct, frozen=True):
    """``switch/MODEL.json``: the move of an alias, and its evidence.

    Attributes:
        verdict: verdict of the receipt; empty without a receipt.
        receipt: SHA-256 of the receipt; empty without a receipt.
        override_reason: why the switch was made without a passed gate; empty if the gate passed.
    """

    model: str
    alias: str
    alias_version: int
    adapter: str
    installation: str
    verdict: str
    receipt: str
    override_reason: str
    switched_at: str
    format: Literal["mens-migration-switch/1"] = "mens-migration-switch/1"


@dataclass(frozen=True, slots=True)
class AliasSwitch:
    """A permitted switch: the alias, the adapter, and the entries for the histories."""

    model: str
    alias: str
    adapter: str
    reason: str
    verdict: str
    receipt: str
    override_reason: str


def prepare(folder: Path, model: str, alias: str, *, adapter: str = "", override_reason: str = "") -> AliasSwitch:
    """Prepare the switch of a tuned model's name, if its receipt or an override allows it.

    Args:
        adapter: id of the successor; empty: the one that the gate compared, or the only one that was trained.
        override_reason: reason for switching without a passed gate.

    Raises:
        Conflict: ``GATE_NOT_PASSED``.
        ArtifactInvalid: the adapter is ambiguous, or the receipt is outdated.
    """
    receipt = read_receipt(folder, model)
    refusal = _refusal(folder, model, receipt, adapter)
    if refusal and not override_reason:
        remedy = f"Run `mens migrate openai gate {folder}`; to switch anyway: --override-reason WHY."
        raise Conflict(Code.GATE_NOT_PASSED, f"{model}: {refusal}.", remedy=remedy, param=model)
    chosen = adapter or _adapter_of(folder, model, receipt)
    sha256 = digest_file(folder / receipt_file(model)) if receipt else ""
    why = f"Successor of {model}. "
    why += (
        f"Without a passed gate ({refusal}): {override_reason}"
        if refusal
        else f"Its gate passed, receipt {sha256[:16]}."
    )
    verdict = str(receipt.verdict) if receipt else ""
    return AliasSwitch(model, alias, chosen, why[:MAX_REASON], verdict, sha256, override_reason if refusal else "")


def switch(folder: Path, installation: Installation, move: AliasSwitch, *, take_alias: bool = False) -> Switch:
    """Move the alias to the adapter, and map the tuned model's name to the alias. Repeating the call changes nothing.

    Args:
        take_alias: whether an existing alias that does not belong to this model may be moved.

    Raises:
        MensError: the installation refuses.
        Conflict: ``ALIAS_TAKEN``: the alias belongs to another model.
    """
    name_path, alias_path = f"/v1/names/{quote(move.model, safe='')}", f"/v1/aliases/{move.alias}"
    alias, name = installation.find(alias_path), installation.find(name_path)
    stands_for = {"kind": "alias", "name": move.alias}
    is_ours = name is not None and name["stands_for"] == stands_for
    if alias and not is_ours and alias["adapter_id"] != move.adapter and not take_alias:
        raise Conflict(
            Code.ALIAS_TAKEN,
            f"The alias {move.alias!r} already exists and points to {alias['adapter_id']}.",
            remedy=(
                f"Choose another name: --model {move.model} --alias NAME. To move the existing alias, give its name "
                "there."
            ),
            param="alias",
        )
    moved = installation.call("PUT", alias_path, json={"adapter": move.adapter, "reason": move.reason})
    installation.call("PUT", name_path, json={"alias": move.alias, "reason": move.reason})
    done = Switch(
        model=move.model,
        alias=move.alias,
        alias_version=moved["version"],
        adapter=move.adapter,
        installation=installation.connection.url,
        verdict=move.verdict,
        receipt=move.receipt,
        override_reason=move.override_reason,
        switched_at=now(),
    )
    path = folder / SWITCH / f"{safe_name(move.model)}.json"
    make_private(path.parent, folder)
    write_json(path, done)
    return done


def aliases_for(models: Iterable[str]) -> dict[str, str]:
    """Return an alias name for each model: its suffix, followed by the last part of its name if several models have
    that suffix.
    """
    names = {model: successor_name(model) for model in models}
    taken = list(names.values())
    return {
        model: name if taken.count(name) == 1 else f"{name}-{model.rpartition(':')[2].lower()}"[:64]
        for model, name in names.items()
    }


def _refusal(folder: Path, model: str, receipt: MigrationReceipt | None, adapter: str) -> str:
    """Return why a receipt does not allow the switch; empty if it does."""
    if receipt is None:
        return "no gate was run"
    if receipt.verdict is not Status.PASSED:
        return f"the gate's verdict is {receipt.verdict}: {receipt.reason}"
    if len(receipt.adapters) != 1:
        return f"the gate compared {len(receipt.adapters)} adapters, not one"
    if adapter and adapter != receipt.adapters[0]:
        return f"the gate compared {receipt.adapters[0]}, not {adapter}"
    if receipt.foreign_model != model:
        return f"the receipt is for {receipt.foreign_model}"
    changed = [
        path
        for path, sha256 in receipt.inputs.items()
        if not (folder / path).is_file() or digest_file(folder / path) != sha256
    ]
    return f"{', '.join(changed)} changed since the gate" if changed else ""


def _adapter_of(folder: Path, model: str, receipt: MigrationReceipt | None) -> str:
    if receipt and len(receipt.adapters) == 1:
        return receipt.adapters[0]
    trained = [training.adapter for training in trainings_of(folder, model) if training.adapter]
    if len(trained) != 1:
        names = ", ".join(trained) or "none"
        message = f"{model} has several possible successors: {names}."
        raise ArtifactInvalid(Code.ARCHIVE_INVALID, message, remedy="Name one with --adapter ID, or run `train` first.")
    return trained[0]
