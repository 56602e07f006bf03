"""``mens jobs merge``: an adapter folded into its base, by a job, or in the original's way on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.client.completion import complete_adapter
from cli.client.connection import call, fail, fail_with
from cli.client.id_prefixes import resolve_adapter_id
from cli.commands.jobs.watch import watch_job
from cli.export.handoff import HANDOFF_NAME
from cli.export.original_merge import merge_original
from shared.counted_nouns import counted
from shared.errors import MensError


def merge(
    adapter: Annotated[
        str | None,
        typer.Argument(
            autocompletion=complete_adapter,
            help="Adapter to merge: its id or the beginning, or an alias.",
        ),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16. Default: the base's own.")] = None,
    base_weights: Annotated[
        str, typer.Option(help="original, or dequant_nf4: the dequantised weights that training computed with.")
    ] = "original",
    max_kl: Annotated[
        float | None,
        typer.Option(
            help=(
                "Largest mean KL (nats) from base + adapter; the job fails above it. Default: depends on the stored "
                "dtype."
            )
        ),
    ] = None,
    base_shard: Annotated[
        list[Path] | None,
        typer.Option(
            help=(
                "For a merge in the original system's format, without a server: a safetensors file of the base; may "
                "be repeated."
            )
        ),
    ] = None,
    adapter_file: Annotated[
        Path | None,
        typer.Option("--adapter", help="With --base-shard: the original's candle_qlora_adapter.safetensors."),
    ] = None,
    meta: Annotated[Path | None, typer.Option(help="With --base-shard: the adapter's sidecar, version 2 or 3.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="With --base-shard: file to write; it gets only the merged tensors, in float32.")
    ] = None,
) -> None:
    """Merge an adapter into its base: a complete model folder in storage, verified against base + adapter.

    With --base-shard, --adapter, --meta and --output, run the original's merge on this machine instead: it writes one file with the
    tensors that an adapter in the original's layout changes.
    """
    if adapter_file or meta or output or base_shard:
        if adapter or not (adapter_file and meta and output):
            fail(
                "the original system's merge needs --base-shard, --adapter, --meta and --output, and does not take "
                "ADAPTER."
            )
        merge_subset(base_shard or [], adapter_file, meta, output)
        return
    if adapter is None:
        fail("name the adapter to merge; --base-shard, --adapter, --meta and --output belong to the original's merge.")
    contract: dict[str, Any] = {"adapter": resolve_adapter_id(adapter), "dtype": dtype, "base_weights": base_weights}
    contract |= {} if max_kl is None else {"max_kl_nats": max_kl}
    job = call("POST", "/v1/jobs", json={"kind": "merge", "contract": contract})
    watch_job(job["id"])


def merge_subset(base_shards: list[Path], adapter: Path, meta: Path, output: Path) -> None:
    """Merge in the original's way and print the result; end the command if the merge is refused."""
    try:
        merged = merge_original(base_shards, adapter, meta, output)
    except MensError as error:
        fail_with(error)
    typer.echo(
        f"wrote {counted(len(merged['layers']), 'tensor')} to {output} (SHA-256 {merged['digest']}), and "
        f"{HANDOFF_NAME} to its folder"
    )
    if merged["skipped"]:
        typer.echo(f"not merged, because they are missing in base_key_map: {', '.join(merged['skipped'])}")
