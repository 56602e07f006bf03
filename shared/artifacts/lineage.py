"""Lineage: code and packages of an adapter's training. Data, contract and base are the manifest's own fields."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from shared.base_models.catalog import Sha256


class Lineage(BaseModel):
    """Provenance of the weights: everything that determined them and is not in the manifest itself.

    It contains no time, machine, path or file id, so that the same training gives the same manifest and the same
    adapter.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    code_version: str = Field(description="Version of Mens.")
    code_commit: str | None = Field(None, description="Commit of its sources, if known.")
    code_digest: Sha256 = Field(description="SHA-256 over the sources of `worker` and `shared`.")
    environment_digest: Sha256 = Field(description="SHA-256 over every installed package with its version.")
    packages: dict[str, str] = Field(description="Packages that compute → version.")
