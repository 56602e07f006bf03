"""A base's dequantised twin: ``python -m worker.dequantize BASE_DIR OUT_DIR [--no-double-quant]``.

Every weight that training holds in NF4 is replaced by the values that training computes with; everything else is
identical to the base's, byte for byte. An adapter that is served with the twin runs on exactly the model that it was
trained on. Each tensor keeps its dtype, so a shard keeps its layout: it is copied, and the new values are written over
the old ones, one tensor at a time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

# Imported first, because it makes the import of the libraries faster.
import worker.libraries  # noqa: F401

# isort: split
import torch
from safetensors import safe_open

from shared.base_models.catalog import model_files
from shared.base_models.weights import read_tensors
from shared.durable_files import rename_durably
from shared.errors import MensError
from worker.child_runtime import print_error
from worker.training.model.nf4 import quantised_tensors, through_nf4


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code, and print an error as JSON."""
    parser = argparse.ArgumentParser(prog="python -m worker.dequantize", description=__doc__)
    parser.add_argument("base", type=Path, metavar="BASE_DIR", help="folder of the base model")
    parser.add_argument("out", type=Path, metavar="OUT_DIR", help="folder to create")
    parser.add_argument("--no-double-quant", dest="double_quant", action="store_false", help="as quant.double_quant")
    arguments = parser.parse_args(argv)
    try:
        write_twin(arguments.base, arguments.out, arguments.double_quant)
    except MensError as error:
        return print_error(error)
    return 0


def write_twin(base: Path, out: Path, double_quant: bool = True) -> None:
    """Write the twin's folder, which must not exist yet; it appears complete or not at all."""
    if out.exists():
        raise FileExistsError(f"{out} already exists; a base model is never overwritten")
    quantised = quantised_tensors(base)
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    partial.mkdir(parents=True)
    try:
        for path in model_files(base):
            shutil.copyfile(path, partial / path.name)
            # Whatever this process's umask is: the server may run as a different user.
            (partial / path.name).chmod(0o644)
            if path.suffix == ".safetensors":
                rewrite_shard(path, partial / path.name, quantised, double_quant)
        rename_durably(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def rewrite_shard(source: Path, target: Path, quantised: set[str], double_quant: bool) -> None:
    """Overwrite the weights to quantise in a copied shard with their dequantised values."""
    offsets = {name: info.start for name, info in read_tensors(source).items()}
    with safe_open(source, framework="pt") as shard, target.open("r+b") as file:
        for name in sorted(quantised & offsets.keys()):
            weight = through_nf4(shard.get_tensor(name), double_quant)
            file.seek(offsets[name])
            file.write(weight.contiguous().view(torch.uint8).numpy().data)


if __name__ == "__main__":
    sys.exit(main())
