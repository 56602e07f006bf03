"""The manifest of a merged model folder: from what it was made, and the digest of every file."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from shared.catalog import Sha256
from shared.manifest import FileName

MODEL_MANIFEST_NAME = "model_manifest.json"


class ModelManifest(BaseModel):
    """``model_manifest.json``; SHA-256 of its canonical JSON is the merged model's identity."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal["mens_merged_model"] = "mens_merged_model"
    version: Literal[1] = 1
    base_model: str
    base_digests: dict[str, Sha256]
    adapter_id: str
    files: dict[FileName, Sha256]
