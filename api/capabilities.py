"""The capability matrix: what this release supports, compared with the original's two engines, and the proof of each
row.

Served as ``GET /v1/capabilities``. A row whose proof is a gate is refused with that code; a row whose proof is a
behaviour gives the error code that shows it. The rows are data (`data/capabilities.json`); the tests check each against its proof.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.errors import Code


class CapabilityValue(BaseModel):
    """Frozen, closed value: the base of the matrix and its parts."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Proof(CapabilityValue):
    """Evidence for a row."""

    kind: Literal["gate", "behaviour"]
    code: Code = Field(description="The code of the refusal.")
    statement: str = Field(description="Description of the refusal, in one sentence.")
    tests: tuple[str, ...] = Field(
        (), description="Tests that measure properties which no refusal can show, by file and name."
    )


class Capability(CapabilityValue):
    """One row of the matrix."""

    id: str
    title: str
    burn: str = Field(description="The original's Burn LoRA engine; deleted.")
    candle: str = Field(description="The original's Candle QLoRA engine.")
    mens: str = Field(description="This installation.")
    proof: Proof


class CapabilityMatrix(CapabilityValue):
    """The whole matrix."""

    version: Literal[1] = 1
    rows: tuple[Capability, ...]


CAPABILITIES = CapabilityMatrix.model_validate_json(files("api").joinpath("data", "capabilities.json").read_bytes())
"""Every capability. Ids are stable."""


def capabilities_here(sandbox: str) -> CapabilityMatrix:
    """Return the matrix of this installation.

    Args:
        sandbox: a sentence without its full stop that names the sandbox in which code runs here, or the reason why code
            does not run.
    """
    rows = (
        row.model_copy(update={"mens": f"{row.mens}; here {sandbox}"}) if row.id == "code_of_graders" else row
        for row in CAPABILITIES.rows
    )
    return CapabilityMatrix(rows=tuple(rows))
