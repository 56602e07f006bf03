"""The first imports of a child program, and what they leave out."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = ("train", "merge", "score", "dequantize")
WORKER = Path(__file__).parents[2] / "worker"

LOADED = """
import gc, json, logging, sys
import worker.train
import torch
print(json.dumps({
    "compiler": "torch._inductor.compile_fx" in sys.modules,
    "libraries": {"bitsandbytes", "peft"} <= sys.modules.keys(),
    "compiles": torch.compile.__module__,
    "collects": gc.isenabled(),
    "frozen": gc.get_freeze_count(),
    "unneeded": sorted(set("celery mlflow opentelemetry prometheus_client redis sqlalchemy wandb".split()) & sys.modules.keys()),
    "warns": logging.getLogger("bitsandbytes.backends.cpu.ops").isEnabledFor(logging.WARNING),
}))
"""


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_imports_it_before_any_library(program):
    imports = [
        node
        for node in ast.parse((WORKER / f"{program}.py").read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    names = [node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports]
    others = [name for name in names if name.partition(".")[0] not in sys.stdlib_module_names]
    assert others[0] == "worker.libraries"


def test_libraries_come_without_compiler_and_collections():
    loaded = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=240, check=True)
    assert "kernels" not in loaded.stderr  # what bitsandbytes would say of each run
    found = json.loads(loaded.stdout)
    assert found["frozen"] > 100_000
    assert found | {"frozen": 0} == {
        "compiler": False,
        "libraries": True,
        "compiles": "torch",  # what it was
        "collects": True,
        "frozen": 0,
        "unneeded": [],  # of a machine that has only what training needs
        "warns": False,
    }
