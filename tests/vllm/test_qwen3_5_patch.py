"""The function that vLLM takes from transformers for Qwen3.5 exists without torchvision, and is the same."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

from serving.vllm_qwen3_5_patch import FUNCTION, MODULE, PILLOW_MODULE, PillowFinder

MODEL_MODULE = "vllm.model_executor.models.qwen3_5"


def source(module: str) -> str:
    """The source of a module, which is not imported."""
    package, *path = module.split(".")
    spec = importlib.util.find_spec(package)
    assert spec and spec.origin
    return Path(spec.origin).parent.joinpath(*path).with_suffix(".py").read_text()


def function(module: str) -> str:
    """The arguments and the body of the function, without comments."""
    (found,) = [n for n in ast.parse(source(module)).body if isinstance(n, ast.FunctionDef) and n.name == FUNCTION]
    return ast.dump(found)


def test_both_modules_have_the_same_function() -> None:
    assert function(MODULE) == function(PILLOW_MODULE)


def test_vllm_takes_nothing_else_from_the_module() -> None:
    imports = [
        n for n in ast.walk(ast.parse(source("vllm.model_executor.models.qwen3_vl"))) if isinstance(n, ast.ImportFrom)
    ]
    assert [[name.name for name in n.names] for n in imports if n.module == MODULE] == [[FUNCTION]]


def test_no_other_module_is_made() -> None:
    finder = PillowFinder()
    assert finder.find_spec(MODULE) is not None
    for other in ("torchvision", "torchvision.transforms.v2", PILLOW_MODULE, f"{MODULE}.x"):
        assert finder.find_spec(other) is None, other


def test_vllm_cannot_import_the_family_without_it() -> None:
    """When this fails, vLLM needs the patch no longer: remove serving/vllm_qwen3_5_patch.py. Or torchvision was installed, which training
    must not have: its CUDA build breaks `import peft`.
    """
    done = subprocess.run([sys.executable, "-c", f"import {MODEL_MODULE}"], capture_output=True, text=True, check=False)
    assert "No module named 'torchvision'" in done.stderr
