"""Checks whether a successor can be trained on a base: on the installation, or on this machine if none is configured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from cli.this_machine import this_machine
from openai_migration.successors.installation import Installation
from shared.base_models.catalog import load_catalog
from shared.contract.flat_keys import parse_contract
from shared.datasets.reader import count_lines
from shared.hashing import digest_file
from shared.preflight.types import InputFile, JobRequest
from shared.settings import Settings

MIB = 1 << 20


class Planner(Protocol):
    """Plans a contract for a base.

    Attributes:
        place: description of the machine that it plans for.
    """

    place: str

    def bases(self) -> Mapping[str, float | None]:
        """Return the catalogue's bases by name, each with its own learning rate, or None."""

    def plan(self, sections: dict[str, Any], train: Path, validation: Path | None) -> dict[str, Any]:
        """Return the plan and the preflight's findings, as ``POST /v1/plans`` returns them.

        Raises:
            MensError: the job cannot run there.
        """


class InstallationPlanner:
    """Plans with an installation, which knows its workers' GPUs; the rows are uploaded to it, once."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self.place = f"the installation {installation.connection.url}"

    def bases(self) -> Mapping[str, float | None]:
        models = self._installation.call("GET", "/v1/models")["data"]
        return {model["id"]: model["mens"]["learning_rate"] for model in models if model["mens"]["kind"] == "base"}

    def plan(self, sections: dict[str, Any], train: Path, validation: Path | None) -> dict[str, Any]:
        held_out = self._installation.upload(validation) if validation else None
        contract = with_files(sections, self._installation.upload(train), held_out)
        answer: dict[str, Any] = self._installation.call("POST", "/v1/plans", json={"contract": contract})
        return answer


class LocalPlanner:
    """Plans on this machine's catalogue, for this machine's GPU, or for its main memory without a GPU."""

    def __init__(self, settings: Settings, vram_bytes: int | None = None) -> None:
        self._settings = settings
        self._machine = this_machine(vram_bytes=vram_bytes)
        if vram := self._machine.vram_bytes:
            self.place = f"this machine's catalogue, for a GPU of {vram / (MIB << 10):.1f} GiB"
        else:
            self.place = "this machine, which has no GPU"

    def bases(self) -> Mapping[str, float | None]:
        return {base.name: base.learning_rate for base in load_catalog(self._settings.catalog_path).bases}

    def plan(self, sections: dict[str, Any], train: Path, validation: Path | None) -> dict[str, Any]:
        from shared.base_models.hub import locate  # which `pip install mens[cli]` lacks
        from shared.preflight.pipeline import preflight

        contract = with_files(sections, train.name, validation.name if validation else None)
        base = load_catalog(self._settings.catalog_path).get(sections["model"]["hf_repo"])
        checked = preflight(
            JobRequest(parse_contract(contract)),
            base,
            locate(base, self._settings.catalog_path),
            _input(train),
            _input(validation) if validation else None,
            self._machine,
        )
        return {"plan": checked.plan.model_dump(mode="json"), "preflight": checked.record()}


def with_files(sections: dict[str, Any], train: str, validation: str | None) -> dict[str, Any]:
    """Return a contract with the ids of its files inserted."""
    files = {"train_file": train} | ({"validation_file": validation} if validation else {})
    return sections | {"data": sections.get("data", {}) | files}


def _input(path: Path) -> InputFile:
    with path.open("rb") as file:
        return InputFile(path.name, digest_file(path), path, count_lines(file))
