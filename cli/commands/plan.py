"""``mens plan``: the whole preflight of a fine-tune job, offline: no installation, no GPU, no upload."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from cli.client.connection import fail_with
from cli.client.json_errors import note_json
from cli.client.parents import find_or_read_manifest
from cli.client.remedies import with_file
from cli.client.uploads import refuse_folders, refuse_other_file, training_file
from cli.commands.contract_flags import parse_flags
from cli.contract_sections import Sections, add_answer_models, lay_over, read_request_options, read_sections
from cli.options import (
    ContinueFrom,
    MethodOption,
    TemplateArgument,
    existing_file,
    method_sections,
    parse_template_arguments,
)
from cli.output import plain_console
from cli.standalone.base_facts import measured_rate
from cli.this_machine import ORIGIN, share_note, this_machine
from shared.base_models.catalog import BaseModelEntry, LocalSource, digest_model_folder, load_catalog
from shared.contract.auto_hyperparameters import auto_exec
from shared.contract.choices import DEVICE_NAMES, BaseQuant, DataMode, Device, MethodType
from shared.contract.flat_keys import parse_contract
from shared.contract.plan import warmup_steps
from shared.contract.sections import DEFAULT_MODEL_ID
from shared.contract.values import describe_arguments
from shared.counted_nouns import counted
from shared.datasets.reader import count_lines
from shared.errors import Code, ContractRejected, MensError
from shared.preflight.parents import planned_parent
from shared.preflight.types import InputFile, JobRequest, Preflight, ServingLimits
from shared.settings import Settings, read_settings

console = plain_console()

GIB = 1 << 30
LONGEST_LABEL = 128


def plan(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(exists=True, callback=refuse_other_file, help="JSONL file with the training rows."),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help=(
                "Base model: a name in the catalogue, or its folder. Default: the contract file's, otherwise "
                f"{DEFAULT_MODEL_ID}, otherwise the catalogue's only base."
            )
        ),
    ] = None,
    validation: Annotated[Path | None, training_file("JSONL file to validate on.")] = None,
    replay: Annotated[
        Path | None,
        training_file("JSONL file mixed into each epoch, against forgetting."),
    ] = None,
    contract: Annotated[Path | None, existing_file("JSON file with contract sections.")] = None,
    lenient: Annotated[bool, typer.Option("--lenient", help="Skip bad lines instead of failing.")] = False,
    template_argument: TemplateArgument = None,
    method: MethodOption = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the file. Default: auto.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate. Default: the base's.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per optimizer step. Default: auto.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Tokens per row. Default: the longest row's.")] = None,
    rank: Annotated[int | None, typer.Option(help="LoRA rank. Default: 16, or that of --continue.")] = None,
    continue_from: ContinueFrom = None,
    quant: Annotated[
        BaseQuant | None,
        typer.Option(
            help="Quantisation of the base: none (full precision), nf4 (QLoRA), or auto (none if it fits in memory)."
        ),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A preset instead of the auto rules.")] = None,
    domain: Annotated[str | None, typer.Option(help="A domain profile.")] = None,
    backend: Annotated[str | None, typer.Option(help="Backend that the contract must select: qlora.")] = None,
    device: Annotated[
        str, typer.Option(help="Device to plan for: cpu, cuda (gpu), or auto (what this machine has).")
    ] = "auto",
    vram_gb: Annotated[
        float | None,
        typer.Option(min=0.001, max=1e6, help="Memory of the training GPU in GiB; checks whether the job fits."),
    ] = None,
    max_lora_rank: Annotated[
        int | None, typer.Option(min=1, help="Largest LoRA rank that the serving tier supports.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", callback=note_json, help="Print plan and preflight as JSON.")
    ] = False,
) -> None:
    """Run every check of a job and show its plan. Exit code 1, with error and remedy, if the job could not run.

    After FILE every field of the contract is a flag by its flat name, as in `mens train`, e.g. --alpha 64 --min-rating 4, and by names
    that other programs use, e.g. --max-seq-length, --lr, --num-train-epochs, --lora-rank. Only --continue needs an installation, unless
    it names an adapter's folder.
    """
    refuse_folders({"train_file": file, "validation_file": validation, "replay_file": replay})
    limits = ServingLimits(max_lora_rank=max_lora_rank) if max_lora_rank else None
    from shared.preflight.pipeline import preflight  # numpy is slow to import

    try:
        sections = read_sections(contract)
        request_options = read_request_options(contract)
        preset, domain = preset or request_options.get("preset"), domain or request_options.get("domain")
        lay_over(sections, parse_flags(context.args))
        validation = validation or _named_file(sections, "validation_file", "--validation")
        replay = replay or _named_file(sections, "replay_file", "--replay")
        add_answer_models(sections, [path for path in (file, replay) if path])
        named, memory = _device(device), int(vram_gb * GIB) if vram_gb else None
        origin = "--device" if named != Device.AUTO else "--vram-gb" if memory else ORIGIN
        machine = this_machine(named, vram_bytes=memory, origin=origin, limits=limits)
        continue_from = continue_from or sections.get("adapter", {}).get("continue_from")
        parent = planned_parent(find_or_read_manifest(continue_from)) if continue_from else None
        base, folder = _base(
            model or sections.get("model", {}).get("hf_repo") or (parent.base_model if parent else None)
        )
        if origin == ORIGIN and (rate := measured_rate(read_settings(Settings), base)):
            machine = replace(
                machine,
                tokens_per_second=rate.tokens_per_second,
                measured_by=rate.job,
                other_seconds=rate.other_seconds,
            )
        options: dict[str, dict[str, Any]] = {
            "model": {"hf_repo": base.name},  # not the typed path, which would differ on another machine
            "data": {
                "train_file": file.name,
                "validation_file": validation.name if validation else None,
                "replay_file": replay.name if replay else None,
                "mode": DataMode.LENIENT if lenient else None,
            },
            "exec": {"epochs": epochs, "learning_rate": learning_rate, "batch_size": batch_size, "seq_len": seq_len},
            "adapter": {"rank": rank, "continue_from": parent.id if parent else None},
            "quant": {"base": quant},
        }
        lay_over(sections, options)
        lay_over(sections, method_sections(method))
        lay_over(sections, {"data": {"template_arguments": parse_template_arguments(template_argument)}})
        train = _input(file)
        pairs = sections.get("method", {}).get("type") in (MethodType.DPO, MethodType.KTO)
        rules = {} if preset or domain else auto_exec(train.lines or 0, base.learning_rate, pairs=pairs)
        auto = frozenset(f"exec.{name}" for name in rules.keys() - sections["exec"].keys())
        sections["exec"] = rules | sections["exec"]
        checked = preflight(
            JobRequest(parse_contract(sections), preset, domain, backend=backend, auto=auto, parent=parent),
            base,
            folder,
            train,
            _input(validation) if validation else None,
            machine,
            _input(replay) if replay else None,
        )
        if not memory and (note := share_note(machine)):
            checked = checked.model_copy(update={"notes": [*checked.notes, note]})
    except MensError as error:
        data_files = {"data.train_file": file, "data.validation_file": validation, "data.replay_file": replay}
        if about := data_files.get(error.param or ""):
            error.remedy = with_file(error.remedy, about)
        fail_with(error)
    if as_json:
        typer.echo(json.dumps({"plan": checked.plan.model_dump(mode="json"), **checked.record()}, indent=2))
    else:
        show(checked)


def _base(named: Any) -> tuple[BaseModelEntry, Path]:
    """Return the base model named by option, flag or contract file, else the only one or the default one, and its
    folder.

    Raises:
        MensError: no base model is found, or the name is not a base model.
    """
    settings = read_settings(Settings)
    if named:
        return entry_and_folder(settings, str(named))
    return entry_and_folder(settings, load_catalog(settings.catalog_path).get_default(DEFAULT_MODEL_ID).name)


def entry_and_folder(settings: Settings, model: str) -> tuple[BaseModelEntry, Path]:
    """Return a base model and its folder, by its name in the catalogue or by its folder.

    Raises:
        MensError: neither exists, or the folder does not contain a base model.
    """
    from shared.base_models.hub import locate

    folder = Path(model).resolve()
    if folder.is_dir():
        source = LocalSource(path=str(folder))
        # A folder's name may be invalid for a base: here it is only a label, not a catalogue entry.
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).lstrip("._-")[:LONGEST_LABEL] or "base"
        return BaseModelEntry(name=name, source=source, digests=digest_model_folder(folder)), folder
    entry = load_catalog(settings.catalog_path).get(model)
    return entry, locate(entry, settings.catalog_path)


def _device(name: str) -> str:
    """Return a preflight's device from any spelling.

    Raises:
        ContractRejected: ``CONTRACT_INVALID``, or ``CONTRACT_UNSUPPORTED`` for a device that no worker trains on.
    """
    device = DEVICE_NAMES.get(name.strip().lower())
    if device is None or device is Device.METAL:
        raise ContractRejected(
            Code.CONTRACT_INVALID if device is None else Code.CONTRACT_UNSUPPORTED,
            f"{name!r} is not a device that a worker trains on.",
            remedy="Use cpu, cuda or auto.",
            param="device",
        )
    return str(device)


def _named_file(sections: Sections, field: str, option: str) -> Path | None:
    """Return a further data file that a contract file names: a path relative to the working folder.

    Raises:
        ContractRejected: ``CONTRACT_INVALID``: the file does not exist on this machine, e.g. because the contract has
            the id of an uploaded file.
    """
    name = sections.get("data", {}).get(field)
    if name is None or Path(str(name)).is_file():
        return None if name is None else Path(str(name))
    raise ContractRejected(
        Code.CONTRACT_INVALID,
        f"data.{field} is {name!r}, which is not a file on this machine.",
        remedy=f"Give the file with {option}; files are not fetched from an installation.",
        param=f"data.{field}",
    )


def show(checked: Preflight) -> None:
    """Print the plan as a table, then the notes."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in facts(checked):
        table.add_row(name, value)
    console.print(table)
    for note in checked.notes:
        console.print(f"note: {note}", highlight=False)


def facts(checked: Preflight) -> list[tuple[str, str]]:
    """Return the rows of the plan's table: base, rows, tokens, steps, device, memory, time, disk and digests."""
    plan, needs, supervision = checked.plan, checked.estimate, checked.supervision
    exec_, adapter = plan.contract.exec, plan.contract.adapter
    held_out = f"{plan.validation_rows:,} held out" if plan.validation_rows else "none"
    if plan.validation:
        held_out = f"{plan.validation.rows:,} from a separate file"
    decided = [path for path, source in checked.sources.items() if source not in ("explicit", "default")]
    rows = [
        ("base", f"{plan.base.name}: {checked.model.config.model_type}, {needs.parameters:,} parameters"),
        ("rows", f"{plan.train.rows - plan.validation_rows:,} for training, {held_out} for validation"),
        ("supervised", f"{supervision.supervised_tokens:,} of {supervision.tokens:,} tokens"),
        ("truncated", f"{counted(supervision.truncated_rows, 'row')} (limit {exec_.seq_len} tokens, truncated at the beginning)"),
        ("steps", f"{counted(plan.optimizer_steps, 'optimizer step')} of {exec_.batch_size} x {counted(exec_.grad_accum, 'row')}, {counted(exec_.epochs, 'epoch')}"),
        ("rate", f"{exec_.learning_rate:g}, warm-up over {counted(warmup_steps(exec_.warmup_steps, plan.optimizer_steps), 'step')}"),
        *([("template", describe_arguments(arguments))] if (arguments := plan.contract.data.template_arguments) else []),
        *([("starts from", f"{plan.parent.id}, {counted(plan.parent.step, 'step')}")] if plan.parent else []),
        ("adapter", f"rank {adapter.rank}, alpha {adapter.alpha}: {needs.trainable_parameters:,} parameters"),
        ("device", checked.device.describe()),
        ("precision", checked.precision.describe()),
        ("memory", needs.describe_memory()),
        ("time", needs.time.describe()),
        ("disk", f"{needs.disk_bytes / GIB:.2f} GiB"),
        ("digests", f"contract {plan.contract_digest[:16]}  plan {plan.digest[:16]}"),
    ]  # fmt: skip
    if decided:
        rows.append(("decided", ", ".join(f"{path} ({checked.sources[path]})" for path in sorted(decided))))
    return rows


def _input(path: Path) -> InputFile:
    digest = sha256()
    with path.open("rb") as file:
        lines = count_lines(file, digest)
    return InputFile(path.name, digest.hexdigest(), path, lines)
