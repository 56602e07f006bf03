"""``mens train`` and ``mens jobs``: create, list, watch, cancel, pause and resume jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.client.api_errors import describe_error
from cli.client.chat_hints import describe_chat
from cli.client.completion import complete_adapter, complete_alias, complete_base, complete_job
from cli.client.connection import call, fail, fail_with, fail_with_response, find, find_all, note, send
from cli.client.gate_outcome import ALIAS_NOT_MOVED, describe_gates, is_of_gates, keeps_alias
from cli.client.id_prefixes import resolve_adapter_id, resolve_job_id
from cli.client.job_progress import FINAL, describe_progress, describe_stage, follow, print_events
from cli.client.job_table import COLUMNS, SPARE_COLUMNS, describe_origin, job_rows
from cli.client.json_errors import Json, note_json
from cli.client.parents import find_manifest
from cli.client.self_evaluation import describe_evaluation
from cli.client.start_command import note_base
from cli.client.uploads import RequestUploads, check_files
from cli.commands.aliases import describe_hiding
from cli.commands.contract_flags import parse_flags
from cli.contract_sections import lay_over, read_sections
from cli.export.handoff import HANDOFF_NAME
from cli.export.original_merge import merge_original
from cli.options import (
    ContinueFrom,
    MethodOption,
    TemplateArgument,
    existing_file,
    method_sections,
    parse_template_arguments,
)
from cli.output import counted, plain_console, print_table, shorten_ids
from cli.times import past_time
from shared.artifacts.merge_fidelity import shift_warning
from shared.contract.auto_hyperparameters import auto_exec
from shared.contract.flat_keys import parse_contract
from shared.contract.sections import DEFAULT_MODEL_ID, BaseQuant, DataMode
from shared.database.job_states import JobState
from shared.database.records import Kind
from shared.datasets.reader import count_lines
from shared.errors import Code, MensError, NotFound
from shared.preflight.servability import base_not_servable
from shared.preflight.types import Estimate, PlannedDevice, TrainingTime
from shared.replicas import ServedBaseName
from shared.scheduling.types import HIGHEST_PRIORITY, LOWEST_PRIORITY

app = typer.Typer(no_args_is_help=True, help="Jobs: list, show, watch, logs, cancel, pause, resume, priority, merge.")
console, errors = plain_console(), plain_console(stderr=True)

LAST_EVENTS = 10
INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""
JobId = Annotated[
    str,
    typer.Argument(
        autocompletion=complete_job, help="Id of the job, or a part that no other id has: its beginning or its end."
    ),
]
JobJson = Annotated[
    bool, typer.Option("--json", callback=note_json, help="Print the whole job as JSON; progress goes to stderr.")
]


def train(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="JSONL file with the training rows.")],
    model: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete_base,
            callback=note_base,
            help=f"Base model, by its name in the catalogue. Default: the contract file's, else {DEFAULT_MODEL_ID}, else the catalogue's only base, else the only served one.",
        ),
    ] = None,
    validation: Annotated[Path | None, existing_file("JSONL file to validate on.")] = None,
    name: Annotated[str | None, typer.Option(help="First part of the adapter's id. Default: the alias.")] = None,
    alias: Annotated[
        str | None,
        typer.Option(autocompletion=complete_alias, help="Alias to move to the adapter when it is published."),
    ] = None,
    replay: Annotated[
        Path | None,
        existing_file("JSONL file mixed into each epoch, against forgetting."),
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
            help="Publish the adapter after measuring it on the serving tier; --no-publish only trains. Default: the contract "
            "file's, else --publish.",
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
    watch: Annotated[bool, typer.Option(help="Follow the job until it ends.")] = True,
    as_json: JobJson = False,
) -> None:
    """Tune a base model on a JSONL file. Check it first with `mens data check FILE` and `mens plan FILE --model NAME`.

    The exit code is 1 unless the job succeeds, and 3 when it succeeds and --alias was not moved, because a gate of its policy did not pass.

    After FILE every field of the contract is a flag by its flat name, e.g. --alpha 64 --qlora-ce-last-k 16 --curriculum, and by names that
    other programs use, e.g. --max-seq-length, --lr, --num-train-epochs, --lora-rank.
    """
    given = {"train_file": file, "validation_file": validation, "replay_file": replay}
    files = {field: path for field, path in given.items() if path}
    options: dict[str, dict[str, Any]] = {
        # Names, until the files have ids: files are sent once everything else is checked.
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
        lay_over(sections, parse_flags(context.args))
        lay_over(sections, options)
        lay_over(sections, method_sections(method))
        lay_over(sections, {"data": {"template_arguments": parse_template_arguments(template_argument)}})
        parsed = parse_contract(sections)
        parent = parsed.adapter.continue_from
        base_of_parent = find_manifest(parent).base_model if parent else None
        base = find_base(sections["model"].get("hf_repo") or base_of_parent)
        if parsed.artifact.publish:
            refuse_unserved(base)
        check_files(parsed.data, files, keep_all=bool(preset or domain), pairs=parsed.has_pairs)
    except MensError as error:
        found = error.as_dict()
        fail(f"{describe_error(found)}\nnothing was uploaded", found)
    sections["model"].setdefault("hf_repo", base["id"])
    rules = {} if preset or domain else _auto_rules(file, base, pairs=parsed.has_pairs)
    uploads = RequestUploads()
    for field, path in files.items():
        sections["data"][field] = uploads.add(path)
    body: dict[str, Any] = {"kind": "finetune", "contract": sections, "name": name, "preset": preset, "domain": domain}
    terms = {"priority": priority, "max_gpu_minutes": max_gpu_minutes, "max_wall_seconds": max_wall_seconds}
    body |= {name: value for name, value in terms.items() if value is not None}
    body["auto"] = sorted(f"exec.{field}" for field in rules.keys() - sections["exec"].keys())
    sections["exec"] = rules | sections["exec"]
    job = uploads.send("/v1/jobs", json=body)
    told = errors if as_json else console
    told.print(f"created {job['id']}: {summary(job)}", soft_wrap=True)
    checked = call("GET", f"{_path(job['id'])}/preflight")
    notes = checked["notes"]
    artifact = job["contract"]["artifact"]
    if artifact["alias"] and artifact["publish"] and (hiding := describe_hiding(artifact["alias"], job["tenant"])):
        notes.append(hiding)
    if expectation := describe_expectation(checked):
        told.print(expectation, highlight=False, soft_wrap=True)
    for line in notes:
        told.print(f"note: {line}", highlight=False, soft_wrap=True)
    if watch:
        watch_job(job["id"], as_json=as_json)
    elif as_json:
        console.print_json(data=job)


def summary(job: dict[str, Any]) -> str:
    """Describe rows, epochs, steps and learning rate of a fine-tune job, in one line."""
    exec_, plan = job["contract"]["exec"], job["plan"]
    batch = exec_["batch_size"] * exec_["grad_accum"]
    rows, held_out = plan["train"]["rows"], plan["validation_rows"]
    held = f" ({held_out} of {rows} are held out to validate)" if held_out else ""
    return (
        f"{counted(rows - held_out, 'row')}{held}, {counted(exec_['epochs'], 'epoch')}, "
        f"{counted(plan['optimizer_steps'], 'step')} of {counted(batch, 'row')}, "
        f"learning rate {exec_['learning_rate']:g}"
    )


def describe_expectation(preflight: dict[str, Any]) -> str:
    """Describe device, memory and time that a job's preflight expects, in one line; empty for a job of an earlier
    release.
    """
    if not (device := preflight.get("device")):
        return ""
    needs = preflight["estimate"]
    # Not validated: a later release may report more.
    memory = Estimate.model_construct(**needs).describe_memory()
    place, time = PlannedDevice.model_construct(**device), TrainingTime.model_construct(**needs["time"])
    return f"device: {place.describe()}; memory: {memory}; time: {time.describe()}"


@app.command("list")
def list_jobs(
    state: Annotated[
        list[JobState] | None, typer.Option(help="Only in this state; may be given several times.")
    ] = None,
    kind: Annotated[Kind | None, typer.Option(help="Only of this kind.")] = None,
    base: Annotated[str | None, typer.Option(autocompletion=complete_base, help="Only of this base model.")] = None,
    alias: Annotated[
        str | None, typer.Option(autocompletion=complete_alias, help="Only those that move this alias.")
    ] = None,
    created_by: Annotated[
        str | None, typer.Option("--by", help="Only those that the key of this name submitted.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="WHEN", callback=past_time, help="Created since: 2h, 7d, 2027-01-31, 2027-01-31T18:00Z."),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option("--find", metavar="TEXT", help="Part of the name or base, or the beginning or end of the id."),
    ] = None,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="The page after this job, the last of another.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Jobs of a page.")] = 20,
    as_json: Json = False,
) -> None:
    """Show jobs, newest first: when, how long, for which alias, from which base, by whom. `mens jobs show ID` has the rest."""
    which = {
        "state": [str(each) for each in state or ()],
        "kind": kind and str(kind),
        "base_model": base,
        "alias": alias,
        "created_by": created_by,
        "created_after": since,
        "q": text,
        "after": after and resolve_job_id(after),
    }
    query = {"view": "summary", "limit": limit}
    page = call("GET", "/v1/jobs", params=query | {name: value for name, value in which.items() if value})
    found = page["data"]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    print_table(COLUMNS, job_rows(found), spare=SPARE_COLUMNS)
    if page["has_more"]:
        note(f"older ones: the same command with --after {shorten_ids(found[-1]['id'])}")


@app.command("show")
def show(
    job_id: JobId,
    as_json: Annotated[
        bool, typer.Option("--json", callback=note_json, help="Print the whole record as JSON.")
    ] = False,
) -> None:
    """Show a job: state, progress, outcome and its last events."""
    job = call("GET", _path(job_id), params={"after": "0"} if as_json else {"last": LAST_EVENTS})
    if as_json:
        console.print_json(data=job)
        return
    state = job["state"] + (f" ({describe_stage(job)})" if job["stage"] else "")
    requested = f", {job['requested']} requested" if job["requested"] else ""
    lines = [f"{job['id']}  {job['kind']}  {state}{requested}  attempt {job['attempt']}"]
    lines += [f"created  {describe_origin(job)}", f"base     {job['base_model']}", f"tenant   {job['tenant']}"]
    lines += [f"plan     {summary(job)}"] if job["kind"] == "finetune" else []
    lines += describe_place(job.get("queue"))
    lines += [f"progress {progress}"] if (progress := describe_progress(job)) else []
    lines += [f"outcome  {_outcome(job)}"] if job["state"] in FINAL else []
    lines += describe_evaluation(job["result"], "against base  ")
    lines += describe_gates(job["result"])
    told = [event for event in job["events"] if job["state"] not in FINAL or not is_of_gates(event)]
    lines += [f"  {event['created_at'][11:19]}  {event['message']}" for event in told]
    for line in lines:
        typer.echo(line)


@app.command("watch")
def watch_job(
    job_id: JobId,
    events: Annotated[
        bool, typer.Option("--events", help="Print every event, steps included, in place of a progress bar.")
    ] = False,
    as_json: JobJson = False,
) -> None:
    """Follow a job until it ends. The exit code is 1 unless the job succeeds, and 3 if it succeeds but its alias was not moved.

    Ctrl-C ends the command with exit code 130; the job continues.
    """
    job_id = resolve_job_id(job_id)
    try:
        job = (print_events if events else follow)(job_id, errors if as_json else console)
    except KeyboardInterrupt:
        note(f"the job continues; follow it: `mens jobs watch {job_id}`; cancel it: `mens jobs cancel {job_id}`")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        console.print_json(data=job)
    else:
        typer.echo(_outcome(job))
        for line in describe_evaluation(job["result"], "against base  ", brief=True):
            typer.echo(line)
        for line in (*describe_gates(job["result"]), *describe_chat(job)):
            typer.echo(line)
    if job["state"] != "succeeded":
        raise typer.Exit(1)
    if keeps_alias(job["result"]):
        raise typer.Exit(ALIAS_NOT_MOVED)


@app.command("logs")
def logs(
    job_id: JobId,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Number of the attempt. Default: the last that has a log.")
    ] = None,
    size: Annotated[int, typer.Option("--bytes", min=1, max=65536, help="At most this many, from the end.")] = 65536,
) -> None:
    """Print the end of an attempt's log: what the trainer wrote, up to the last 15 seconds while it runs."""
    query = {"bytes": size} | ({"attempt": attempt} if attempt else {})
    response = send("GET", f"{_path(job_id)}/log", params=query)
    if response.is_error:
        fail_with_response(response)
    if response.text:
        note(f"attempt {response.headers['x-mens-attempt']}")
        typer.echo(response.text, nl=not response.text.endswith("\n"))
    else:
        note("no log is kept: an attempt has one once its trainer has begun, until retention deletes it")


@app.command("cancel")
def cancel(job_id: JobId) -> None:
    """Cancel a job."""
    _print_state(call("POST", f"{_path(job_id)}/cancel"))


@app.command("pause")
def pause(job_id: JobId) -> None:
    """Pause a job; a running one writes a checkpoint first."""
    _print_state(call("POST", f"{_path(job_id)}/pause"))


@app.command("resume")
def resume(job_id: JobId) -> None:
    """Resume a paused job from its checkpoint."""
    _print_state(call("POST", f"{_path(job_id)}/resume"))


@app.command("priority")
def priority(
    job_id: JobId,
    level: Annotated[
        int,
        typer.Argument(
            min=LOWEST_PRIORITY, max=HIGHEST_PRIORITY, help="-5 to 5, higher runs first; above 0 only for operators."
        ),
    ],
) -> None:
    """Change the priority of an unfinished job. Write a negative number after `--`: `mens jobs priority ID -- -2`."""
    job = call("PATCH", _path(job_id), json={"priority": level})
    typer.echo(f"{job['id']} is {job['state']} with priority {job['priority']}")


@app.command("merge")
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
            help="Largest mean KL (nats) from base + adapter; the job fails above it. Default: depends on the stored dtype."
        ),
    ] = None,
    base_shard: Annotated[
        list[Path] | None,
        typer.Option(
            help="For the original's merge, without a server: a safetensors file of the base; may be repeated."
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
            fail("the original's merge needs --base-shard, --adapter, --meta and --output, and takes no ADAPTER.")
        merge_subset(base_shard or [], adapter_file, meta, output)
        return
    if adapter is None:
        fail("name the adapter to merge; --base-shard, --adapter, --meta and --output belong to the original's merge.")
    contract: dict[str, Any] = {"adapter": resolve_adapter_id(adapter), "dtype": dtype, "base_weights": base_weights}
    contract |= {} if max_kl is None else {"max_kl_nats": max_kl}
    job = call("POST", "/v1/jobs", json={"kind": "merge", "contract": contract})
    watch_job(job["id"])


def describe_place(place: dict[str, Any] | None) -> list[str]:
    """Return a line with a queued job's place, the reason, and its expected start; none for other jobs."""
    if place is None:
        return []
    start, error = place["estimated_start"], place["estimate_error"]
    when = f", starts about {start[:16].replace('T', ' ')} UTC" if start else ""
    if start and error:
        when += f" (half of these estimates were off by less than {error['p50_seconds']:.0f} s)"
    return [f"queue    {place['position']}{when}. {place['explanation']}"]


def merge_subset(base_shards: list[Path], adapter: Path, meta: Path, output: Path) -> None:
    """Merge in the original's way and print the result; end the command if the merge is refused."""
    try:
        merged = merge_original(base_shards, adapter, meta, output)
    except MensError as error:
        fail_with(error)
    typer.echo(
        f"wrote {counted(len(merged['layers']), 'tensor')} to {output} (SHA-256 {merged['digest']}), and {HANDOFF_NAME} to its folder"
    )
    if merged["skipped"]:
        typer.echo(f"not merged, because they are missing in base_key_map: {', '.join(merged['skipped'])}")


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
    if not named and (only := next((each for each in (models, served) if len(each) == 1), None)):
        return only[0]
    bases = [model["id"] for model in models]
    is_default = f"No model was named, and the default, {name!r}, is not in this installation's catalogue"
    what = f"The base model {name!r} is not in this installation's catalogue" if named else is_default
    raise NotFound(
        Code.MODEL_NOT_FOUND,
        f"{what} (it has: {', '.join(bases) or 'none yet'}).",
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


def _auto_rules(file: Path, base: dict[str, Any], *, pairs: bool) -> dict[str, float]:
    with file.open("rb") as content:
        return auto_exec(count_lines(content), base["mens"].get("learning_rate"), pairs=pairs)


def _path(job_id: str) -> str:
    return f"/v1/jobs/{quote(resolve_job_id(job_id), safe='')}"


def _print_state(job: dict[str, Any]) -> None:
    requested = job["requested"]
    stopping = f"{job['id']}: {requested} requested; its worker is stopping"
    typer.echo(stopping if requested else f"{job['id']} is {job['state']}")


def _outcome(job: dict[str, Any]) -> str:
    if job["error"]:
        return f"{job['state']}: {job['error']['code']}: {job['error']['message']} {job['error']['remedy']}"
    if merged := job["result"].get("model_digest"):
        made = f"models/{merged} in the storage folder; `mens up --base {merged[:12]}` serves it as a base of its own"
        return f"{job['state']}: {made}{_fidelity(job['result'].get('fidelity'))}"
    return f"{job['state']}  {job['result'].get('adapter_id') or ''}".rstrip()


def _fidelity(measured: dict[str, Any] | None) -> str:
    """Describe the measured fidelity of a merged model in a second line; empty for a model that an earlier release
    merged.
    """
    if measured is None:
        return ""
    merge, training, effect = (measured[name] for name in ("adapter_divergence", "training_divergence", "effect"))
    seen = f"{training['mean_kl_nats']:.1e} from what training saw; " if training else ""
    warning = shift_warning(training and training["mean_kl_nats"], effect["mean_kl_nats"])
    return (
        f"\nfidelity over {counted(measured['positions'], 'position')}, mean KL in nats: {merge['mean_kl_nats']:.1e} from base + adapter"
        f" (limit {measured['limit_nats']:.0e}, largest logit difference {merge['max_logit_difference']:.1e}); {seen}"
        f"the adapter's effect is {effect['mean_kl_nats']:.1e}" + (f"\nwarning: {warning}" if warning else "")
    )
