"""An MLflow model, written by MLflow's own client: the unchanged adapter, and code that loads it with transformers and
peft.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from cli.client.connection import fail
from shared.artifacts.manifests import AdapterManifest
from shared.hashing import digest_json

CODE = Path(__file__).with_name("mlflow_chat.py")
NEEDS_MLFLOW = "The format mlflow needs MLflow: pip install 'mens[mlflow]'."
LOADED_WITH = ("accelerate", "mlflow-skinny", "pandas", "peft", "safetensors", "torch", "transformers")


def check_installed() -> None:
    """End the command before any download if MLflow's client is not installed."""
    if not all(map(importlib.util.find_spec, ("mlflow", "pandas"))):
        fail(NEEDS_MLFLOW)


def write_mlflow_model(files: Sequence[Path], target: Path, manifest: AdapterManifest) -> None:
    """Write the model into an empty folder. MLflow adds an id and the time, so no two such folders are equal.

    Args:
        files: the adapter's files; they become the artifact ``adapter``, which still verifies.
    """
    with warnings.catch_warnings(action="ignore"):  # MLflow warns at its import about its own type hints
        _save(files, target, manifest)


def _save(files: Sequence[Path], target: Path, manifest: AdapterManifest) -> None:
    import mlflow.pyfunc
    from mlflow import environment_variables as environment
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array, Object, Property

    turn = Object([Property("role", DataType.string), Property("content", DataType.string)])
    signature = ModelSignature(
        inputs=Schema([ColSpec(Array(turn), "messages")]),
        outputs=Schema([ColSpec(DataType.string)]),
        params=ParamSchema(
            [ParamSpec("max_new_tokens", DataType.long, 256), ParamSpec("temperature", DataType.double, 0.0)]
        ),
    )
    with tempfile.TemporaryDirectory(prefix="mens-mlflow-") as folder:
        adapter = Path(folder, "adapter")
        adapter.mkdir()
        for path in files:
            shutil.copyfile(path, adapter / path.name)
        environment.MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR.set(False)
        mlflow.pyfunc.save_model(
            path=str(target),
            python_model=str(CODE),
            artifacts={"adapter": str(adapter)},
            model_config={"base": None},
            signature=signature,
            input_example={"messages": [{"role": "user", "content": "Hello"}]},
            pip_requirements=_requirements(),
            metadata={
                "mens_adapter": manifest.adapter_id,
                "mens_base": manifest.base_model,
                "mens_base_digest": digest_json(manifest.base_digests),
            },
        )


def _requirements() -> list[str]:
    """Return the packages that load the model, in the versions that Mens trains with."""
    try:
        declared = [line.partition(";")[0].strip() for line in importlib.metadata.requires("mens") or ()]
    except importlib.metadata.PackageNotFoundError:  # run from its source
        declared = []
    versions = {re.split(r"[^\w-]", line)[0]: line for line in declared}
    return [versions.get(name, name) for name in LOADED_WITH]
