"""``mens train``: creates a fine-tune job from a file and options, after checking everything that can be checked
here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console

from cli.client.api_errors import describe_error
from cli.client.completion import complete_alias, complete_base
from cli.client.connection import call, fail, find, find_all
from cli.client.id_prefixes import resolve_adapter_id
from cli.client.parents import find_manifest
from cli.client.start_command import note_base
from cli.client.uploads import RequestUploads, check_files, refuse_folders, refuse_other_file, training_file
from cli.commands.aliases import describe_hiding
from cli.commands.contract_flags import parse_flags
from cli.commands.corpus.table_options import (
    FromTable,
    KeyOption,
    LagOption,
    RedactOption,
    RowOption,
    SqlOption,
    TableOptions,
    UrlOption,
    WatermarkOption,
    describe_pull,
)
from cli.commands.jobs.descriptions import describe_expectation, describe_plan
from cli.commands.jobs.job_arguments import JobJson, job_path
from cli.commands.jobs.watch import watch_job
from cli.contract_sections import add_answer_models, lay_over, read_request_options, read_sections
from cli.options import (
    ContinueFrom,
    MethodOption,
    TemplateArgument,
    existing_file,
    method_sections,
    parse_template_arguments,
)
from cli.output import plain_console
from shared.base_models.catalog import unnamed_base
from shared.contract.auto_hyperparameters import auto_exec
from shared.contract.choices import BaseQuant, DataMode
from shared.contract.contracts import FineTuneContract
from shared.contract.flat_keys import parse_contract
from shared.contract.sections import DEFAULT_MODEL_ID
from shared.counted_nouns import counted
from shared.datasets.reader import count_lines
from shared.errors import Code, MensError, NotFound
from shared.preflight.servability import base_not_servable, rank_not_servable, rows_too_long
from shared.replicas import ServedBaseName

console, errors = plain_console(), plain_console(stderr=True)


def train(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(callback=refuse_other_file, help="JSONL file with the training rows. Or --from-table."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete_base,
            callback=note_base,
            help=(
                "Base model, by its name in the catalogue. Default: the contract file's, otherwise "
                f"{DEFAULT_MODEL_ID}, the catalogue's only base, or the only served one, in this order."
            ),
        ),
    ] = None,
    validation: Annotated[Path | None, training_file("JSONL file to validate on.")] = None,
    name: Annotated[str | None, typer.Option(help="First part of the adapter's id. Default: the alias.")] = None,
    alias: Annotated[
        str | None,
        typer.Option(autocompletion=complete_alias, help="Alias to move to the adapter when it is published."),
    ] = None,
    replay: Annotated[
        Path | None,
        training_file("JSONL file mixed into each epoch, against forgetting."),
    ] = None,
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
    publish: Annotated[
        bool | None,
        typer.Option(
            "--publish/--no-publish",
            help=(
                "Publish the adapter after measuring it on the serving tier; --no-publish only trains. Default: the "
                "contract file's, otherwise --publish."
            ),
        ),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A preset instead of the auto rules.")] = None,
    domain: Annotated[str | None, typer.Option(help="A domain profile.")] = None,
    contract: Annotated[
        Path | None, existing_file("JSON file with contract sections; options and flags override it.")
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            help="-5 to 5, higher runs first; one level equals 12 hours of waiting; above 0 only for operators."
        ),
    ] = None,
    max_gpu_minutes: Annotated[float | None, typer.Option(help="Fail the job after this many GPU-minutes.")] = None,
    max_wall_seconds: Annotated[float | None, typer.Option(help="Fail the job after it has run for this long.")] = None,
    from_table: FromTable = None,
    sql: SqlOption = None,
    key: KeyOption = None,
    watermark: WatermarkOption = None,
    lag: LagOption = "10m",
    row: RowOption = None,
    redact: RedactOption = None,
    url_env: UrlOption = None,
    watch: Annotated[bool, typer.Option(help="Follow the job until it ends.")] = True,
    as_json: JobJson = False,
) -> None:
    """Tune a base model on a JSONL file. Check it first with `mens data check FILE` and `mens plan FILE --model NAME`.

    With --from-table the rows come from a database: they are pulled as `mens corpus pull` does, and then trained on.

    The exit code is 1 unless the job succeeds, and 3 when it succeeds and --alias was not moved, because a gate of its policy did not pass.

    After FILE every field of the contract is a flag by its flat name, e.g. --alpha 64 --qlora-ce-last-k 16 --curriculum, and by names that
    other programs use, e.g. --max-seq-length, --lr, --num-train-epochs, --lora-rank.
    """
    progress = errors if as_json else console
    table = TableOptions(from_table or "", sql, key, watermark, lag, row, redact, url_env)
    further = refuse_folders({"validation_file": validation, "replay_file": replay})
    file = _training_file(context, file, table, progress)
    files = {"train_file": file, **further}
    options: dict[str, dict[str, Any]] = {
        # The contract has the files' names until they have ids: files are sent once everything else is checked.
        "data": {
            **{field: path.name for field, path in files.items()},
            "mode": DataMode.LENIENT if lenient else None,
        },
        "exec": {"epochs": epochs, "learning_rate": learning_rate, "batch_size": batch_size, "seq_len": seq_len},
        "adapter": {"rank": rank, "continue_from": continue_from and resolve_adapter_id(continue_from)},
        "quant": {"base": quant},
        "artifact": {"alias": alias, "publish": publish},
        "model": {"hf_repo": model},
    }
    try:
        sections = read_sections(contract)
        request_options = read_request_options(contract)
        name, preset, domain = (
            name or request_options.get("name"),
            preset or request_options.get("preset"),
            domain or request_options.get("domain"),
        )
        lay_over(sections, parse_flags(context.args))
        add_answer_models(sections, [path for path in (file, replay) if path])
        lay_over(sections, options)
        lay_over(sections, method_sections(method))
        lay_over(sections, {"data": {"template_arguments": parse_template_arguments(template_argument)}})
        parsed = parse_contract(sections)
        parent = parsed.adapter.continue_from
        base_of_parent = find_manifest(parent).base_model if parent else None
        base = find_base(sections["model"].get("hf_repo") or base_of_parent)
        if parsed.artifact.publish:
            refuse_unserved(base)
        refuse_too_large(parsed, base)
        check_files(parsed, files, keep_all=bool(preset or domain))
    except MensError as error:
        refusal = error.as_dict()
        fail(f"{describe_error(refusal)}\nnothing was uploaded", refusal)
    sections["model"].setdefault("hf_repo", base["id"])
    rules = {} if preset or domain else _auto_rules(file, base, pairs=parsed.has_preferences)
    uploads = RequestUploads()
    for field, path in files.items():
        sections["data"][field] = uploads.add(path)
    body: dict[str, Any] = {"kind": "finetune", "contract": sections, "name": name, "preset": preset, "domain": domain}
    terms = {"priority": priority, "max_gpu_minutes": max_gpu_minutes, "max_wall_seconds": max_wall_seconds}
    body |= {name: value for name, value in terms.items() if value is not None}
    body["auto"] = sorted(f"exec.{field}" for field in rules.keys() - sections["exec"].keys())
    sections["exec"] = rules | sections["exec"]
    job = uploads.send("/v1/jobs", json=body)
    progress.print(f"created {job['id']}: {describe_plan(job)}", soft_wrap=True)
    checked = call("GET", f"{job_path(job['id'])}/preflight")
    notes = checked["notes"]
    artifact = job["contract"]["artifact"]
    if artifact["alias"] and artifact["publish"] and (hiding := describe_hiding(artifact["alias"], job["tenant"])):
        notes.append(hiding)
    if expectation := describe_expectation(checked):
        progress.print(expectation, highlight=False, soft_wrap=True)
    for line in notes:
        progress.print(f"note: {line}", highlight=False, soft_wrap=True)
    if watch:
        watch_job(job["id"], as_json=as_json)
    elif as_json:
        console.print_json(data=job)


def _training_file(context: typer.Context, file: Path | None, table: TableOptions, progress: Console) -> Path:
    """Return the file to train on: the named file, or a file that is pulled from a table."""
    if table.source:
        if file:  # this is not a file, but the first of the contract's flags
            context.args.insert(0, str(file))
        return _pull_rows(table, progress)
    if table.sql:
        raise typer.BadParameter("It needs --from-table NAME.", param_hint="--sql")
    if file is None:
        raise typer.BadParameter("Name a JSONL file, or a table with --from-table.", param_hint="FILE")
    refuse_folders({"train_file": file})
    if not file.is_file():
        raise typer.BadParameter(f"File '{file}' does not exist.", param_hint="FILE")
    return file


def _pull_rows(options: TableOptions, progress: Console) -> Path:
    """Pull the rows of a table, and return the training file of the newest version of each."""
    from corpus.reading.newest import write_newest

    folder = options.folder()
    for line in describe_pull(options.pull(folder), folder):
        progress.print(line, highlight=False, soft_wrap=True)
    file = folder.with_suffix(".jsonl")
    progress.print(f"wrote {file} with {counted(write_newest(folder, file), 'row')}", highlight=False, soft_wrap=True)
    return file


def find_base(named: Any) -> dict[str, Any]:
    """Return the model that a contract names, else the default one, else the catalogue's only base, else the only
    served one, as the API describes it.

    Raises:
        NotFound: ``MODEL_NOT_FOUND``, with the available bases.
    """
    name = str(named or DEFAULT_MODEL_ID)
    if model := find(f"/v1/models/{quote(name, safe='')}"):
        return dict(model)
    models = [model for model in find_all("/v1/models") if model["mens"]["kind"] == "base"]
    served = [model for model in models if model["mens"].get("serves_adapters")]
    if not named and (only := next((candidates for candidates in (models, served) if len(candidates) == 1), None)):
        return only[0]
    bases = [model["id"] for model in models]
    if not named:
        raise unnamed_base(bases)
    raise NotFound(
        Code.MODEL_NOT_FOUND,
        f"The base model {name!r} is not in this installation's catalogue (it has: {', '.join(bases) or 'none yet'}).",
        remedy=f"Name one of them: --model {bases[0]}." if bases else "Add one: `mens base add`.",
        param="model.hf_repo",
    )


def refuse_unserved(base: dict[str, Any]) -> None:
    """Refuse a base, as the API describes it, whose adapters no replica serves; if that is unknown the API decides.

    Raises:
        ContractRejected: ``NOT_SERVABLE_BASE``.
    """
    if base["mens"].get("serves_adapters") is False:
        served = [model for model in find_all("/v1/models") if model["mens"].get("served")]
        raise base_not_servable(
            base["id"], [ServedBaseName(model["id"], model["mens"].get("twin_of")) for model in served]
        )


def refuse_too_large(contract: FineTuneContract, base: dict[str, Any]) -> None:
    """Refuse an explicit rank or length that exceeds a limit that the API reports for a base. The API itself checks
    limits that it does not report.

    Raises:
        ContractRejected: ``NOT_SERVABLE_RANK``, ``SEQ_LEN_TOO_LARGE``.
    """
    rank, most = contract.adapter.rank, base["mens"].get("max_lora_rank")
    if contract.artifact.publish and "rank" in contract.adapter.model_fields_set and most and rank > most:
        raise rank_not_servable(rank, most)
    seq_len, positions = contract.exec.seq_len, base["mens"].get("positions")
    if "seq_len" in contract.exec.model_fields_set and positions and seq_len > positions:
        raise rows_too_long(seq_len, positions)


def _auto_rules(file: Path, base: dict[str, Any], *, pairs: bool) -> dict[str, float]:
    with file.open("rb") as content:
        return auto_exec(count_lines(content), base["mens"].get("learning_rate"), pairs=pairs)
