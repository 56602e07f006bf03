"""A base's folder from a GGUF file: ``python -m worker.bases.gguf_base FILE.gguf OUT_DIR``.

The blocks are dequantised, and weights, config, tokenizer and chat template are written as transformers saves them. A
file whose conversion would give a different model is refused: its tensors must match the model's, and its tokenizer
must be a known one. An error is one line of JSON on stdout; progress goes to stderr.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Regex, normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from shared.base_models.gguf_conversion import MERGED_WHOLE, NORMALISED, check_convertible
from shared.base_models.gguf_file import GgufHeader, invalid, read_gguf_header, unsupported
from shared.contract.choices import TokenizerMode
from shared.durable_files import rename_durably
from shared.errors import MensError
from shared.host import disk_errors
from shared.preflight.base_model import preflight_model
from worker.child_runtime import is_out_of_memory, out_of_memory, print_error

DTYPES = {"F32": torch.float32, "F16": torch.float16}
"""Types of weights that are kept; quantised blocks become bfloat16, the type in which the models were published."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code, and print an error as JSON."""
    parser = argparse.ArgumentParser(prog="python -m worker.bases.gguf_base", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="GGUF file of a chat model")
    parser.add_argument("out", type=Path, metavar="OUT_DIR", help="folder to create")
    arguments = parser.parse_args(argv)
    try:
        with disk_errors():
            write_base(arguments.file, arguments.out)
    except MensError as error:
        return print_error(error)
    return 0


def write_base(file: Path, out: Path) -> None:
    """Write the base's folder, which must not exist yet; it appears complete or not at all.

    Raises:
        ArtifactInvalid: ``GGUF_INVALID`` or the code of a check of :func:`preflight_model`.
        JobFailed: ``OUT_OF_MEMORY``.
    """
    if out.exists():
        raise FileExistsError(f"{out} already exists; a base model is never overwritten")
    disable_progress_bar()
    set_verbosity_error()
    warnings.simplefilter("ignore")
    header = read_gguf_header(file)
    check_convertible(file, header)
    # With the process id, so that two conversions to one name do not write into one folder.
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    partial.mkdir(parents=True)
    try:
        # Alone in a folder, because transformers also reads the files next to it.
        source = partial / "source"
        source.mkdir()
        (source / "model.gguf").symlink_to(file.resolve())
        try:
            model, tokenizer = _load(file, source, header)
        except MensError:
            raise
        except Exception as error:
            # The libraries may raise anything. The cause is the file, because everything else is ours.
            if is_out_of_memory(error):
                raise out_of_memory(str(error)) from error
            reason = (str(error).splitlines() or [""])[0][:200]
            if isinstance(error, NotImplementedError):
                raise unsupported(file, f"is of a kind that transformers does not convert ({reason})") from error
            raise invalid(file, f"transformers cannot read it ({type(error).__name__}: {reason})") from error
        # Before the rename, because the digests of a base cover every file in its folder.
        shutil.rmtree(source)
        print(f"writing {out}", file=sys.stderr)
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        # transformers accepts a tensor whose shape differs from the config.
        preflight_model(partial, tokenizer_mode=TokenizerMode.HF)
        for path in partial.iterdir():
            # safetensors writes 0600, and the server may run as a different user from the worker.
            path.chmod(0o644)
        rename_durably(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _load(file: Path, source: Path, header: GgufHeader) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model and tokenizer of the checked file, which is ``model.gguf`` in a folder that contains nothing else.

    Raises:
        ArtifactInvalid: ``GGUF_INVALID``: the model's tensors differ from the file's.
    """
    print(f"dequantising {file.name}: {header.stored_type}, {header.elements / 1e6:.0f}M parameters", file=sys.stderr)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file="model.gguf")
    _complete_tokenizer(tokenizer, str(header.metadata.get("tokenizer.ggml.pre", "")))
    model, loading = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file="model.gguf",
        dtype=DTYPES.get(header.stored_type, torch.bfloat16),
        quantization_config=GgufConfig(dequantize=True),
        output_loading_info=True,
    )
    if loading["missing_keys"]:
        raise invalid(file, f"the weight {min(loading['missing_keys'])} is missing")
    layers = model.config.num_hidden_layers
    # A tensor without a place in the model, such as a bias, would be lost silently. Blocks after the last layer predict
    # additional tokens and are left out.
    stored = sum(tensor.elements for name, tensor in header.tensors.items() if _block(name) < layers)
    taken = sum(parameter.numel() for parameter in model.parameters())
    if stored != taken:
        raise invalid(file, f"its tensors have {stored} elements, but a model of its architecture has {taken}")
    return model, tokenizer


def _block(name: str) -> int:
    """Return the number of a tensor's block; -1 outside the blocks."""
    segments = name.split(".")
    return int(segments[1]) if segments[0] == "blk" and segments[1].isdigit() else -1


def _complete_tokenizer(tokenizer: PreTrainedTokenizerBase, split: str) -> None:
    """Add the steps that the model's own tokenizer runs before and during merging, which transformers does not read
    from the format.
    """
    backend = tokenizer.backend_tokenizer
    if split in NORMALISED:
        backend.normalizer = normalizers.NFC()
    if split in MERGED_WHOLE:
        backend.model.ignore_merges = True
    if split == "smollm":
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )


if __name__ == "__main__":
    sys.exit(main())
