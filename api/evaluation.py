"""Submission of evaluations: check everything that can be checked before a model is called, then queue a job."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from api.grader_sandboxes import RUNS_AT_ONCE
from api.inference.request_validation import validate_chat, validate_response
from api.services import Services
from api.submission import submit
from api.web.tenant_view import TenantView
from shared.database.base_certificates import BaseCertificates, refuse_uncertified
from shared.database.evaluation.evals import Eval
from shared.database.files.files import File
from shared.database.records import DEFAULT_TERMS, Job, Kind, QueueTerms, Submission
from shared.database.routing import Destination, Routing
from shared.errors import Code, InvalidRequest, MensError, NotFound
from shared.evaluation.criteria import models_that_judge
from shared.evaluation.items import CHARACTERS_PER_TOKEN, ItemsReport, check_count, check_items, read_items
from shared.evaluation.plan import EvaluationPlan, ModelTarget, PlannedItems, plan_run
from shared.evaluation.prompts import messages_of, request_of
from shared.evaluation.types import (
    EvalSpec,
    FileContent,
    FileId,
    JsonlSource,
    MessageTemplate,
    RunSpec,
    SourceItem,
    StoredConfig,
    StoredSource,
)
from shared.graders.grading import check_runnable, has_code
from shared.graders.model_graders import check_text_alone
from shared.hashing import digest_json
from shared.sandbox.client import Sandbox

INLINE_NAME = "eval-items.jsonl"
"""File name of rows that were sent in a run's request."""
SOURCE = "data_source.source"
LARGEST_SEED = 2**31 - 1


def submit_run(
    services: Services,
    view: TenantView,
    judged: Eval,
    run: RunSpec,
    *,
    name: str,
    labels: dict[str, str],
    idempotency_key: str | None,
    terms: QueueTerms = DEFAULT_TERMS,
) -> Job:
    """Check a run of an eval completely, write its job, and enqueue it.

    Args:
        services: the API's services.
        view: the view of the tenant whose run it is.
        judged: the eval.
        run: the requested run.
        name: name of the run; empty: its id.
        labels: the caller's metadata.
        idempotency_key: the same key and request give the same run.
        terms: the job's priority and limits.

    Raises:
        InvalidRequest: ``DATA_SOURCE_UNSUPPORTED``, ``REQUEST_INVALID``; and the codes of refused model requests.
        NotFound: ``MODEL_NOT_FOUND``.
    """
    spec = EvalSpec.model_validate(judged.spec)
    source = _supported_source(spec, run)
    targets, base_model = _models(services, view, spec, run)
    _check_criteria(services, spec)
    _check_prompt(run)
    with _stored_items(services, view, source) as (file, inline):
        report = _check_items(services, file, inline, spec, run)
        items = PlannedItems(file_id=file.id, sha256=file.sha256, count=report.count, inline=inline is not None)
        plan = plan_run(judged.id, spec, run, items, targets, secrets.randbelow(LARGEST_SEED))
        check_count(plan.answers, services.settings.max_eval_items)
        _check_request(services, file, plan)
        request = {"eval": judged.id, "run": run.model_dump(mode="json"), "name": name, "labels": labels}
        job = submit(
            services,
            view,
            Submission(
                kind=Kind.EVALUATE,
                base_model=base_model,
                name=(name or judged.name)[:64],
                contract={"eval": judged.id, "eval_name": judged.name},
                plan=plan.model_dump(mode="json"),
                extra={"items_file": file.id, "estimate": _estimate(plan, report)},
                labels=labels,
                idempotency_key=idempotency_key,
                request_digest=digest_json(request),
                eval_id=judged.id,
                run_name=name,
            ),
            terms,
        )
        if inline is not None and job.extra["items_file"] != file.id:
            # This is the run of an earlier request with the same key, which has a file of its own.
            view.files.delete(file.id, services.storage.delete_blob)
        return job


def read_content(services: Services, plan: EvaluationPlan) -> list[SourceItem] | None:
    """Return the rows that were sent in a run's request; None if the request named a file, or if the rows have been
    deleted.
    """
    if not plan.items.inline:
        return None
    try:
        with services.storage.local_file(plan.items.sha256) as path:
            return list(read_items(path))
    except MensError:
        return None


def resolve_model(services: Services, view: TenantView, name: str, param: str) -> tuple[ModelTarget, str]:
    """Return the model that a name currently refers to, and its base.

    Raises:
        NotFound: ``MODEL_NOT_FOUND``.
        InvalidRequest: ``REQUEST_INVALID``: an alias that is split between adapters.
    """
    bases = {base.name for base in services.catalog().bases}
    if name in bases:
        _check_offered(services, name)
        return ModelTarget(name=name, served=name), name
    destination = _destination(view, name) if name.isprintable() else None
    if destination and destination.routing is None and destination.name in bases:
        _check_offered(services, destination.name)
        return ModelTarget(name=name, served=destination.name), destination.name
    if destination is None or destination.routing is None:
        message = f"The model {name[:256]!r} does not exist."
        raise NotFound(
            Code.MODEL_NOT_FOUND, message, remedy="List the available models with GET /v1/models.", param=param
        )
    if len(destination.routing.targets) > 1:
        adapters = ", ".join(target.adapter for target in destination.routing.targets)
        message = f"The alias {name!r} is split between {adapters}, but a run evaluates one model."
        raise InvalidRequest(Code.REQUEST_INVALID, message, remedy="Name one of them.", param=param)
    adapter = view.adapters.get(destination.routing.main)
    return ModelTarget(name=name, served=adapter.id), adapter.base_model


def _check_offered(services: Services, base: str) -> None:
    entry = services.catalog().get(base)
    if entry.merged_from:
        refuse_uncertified(base, BaseCertificates(services.database).of(entry.digest))


def _destination(view: TenantView, name: str) -> Destination | None:
    if alias := view.aliases.find(name):
        return Destination(name, alias)
    try:
        adapter = view.adapters.get(name)
    except NotFound:
        return view.names.resolve(name)
    return Destination(name, Routing.to(adapter.id)) if adapter.published else None


def _supported_source(spec: EvalSpec, run: RunSpec) -> FileContent | FileId:
    source = run.data_source.source
    stored = spec.data_source_config.type if isinstance(spec.data_source_config, StoredConfig) else None
    if isinstance(source, StoredSource) or stored:
        raise InvalidRequest(
            Code.DATA_SOURCE_UNSUPPORTED,
            f"The data source {stored or source.type!r} refers to stored answers, but Mens does not store answers.",
            remedy="Make an eval of type custom, and send the rows as file_content or file_id.",
            param="data_source" if stored else f"{SOURCE}.type",
        )
    return source


def _models(services: Services, view: TenantView, spec: EvalSpec, run: RunSpec) -> tuple[list[ModelTarget], str]:
    """Resolve the models to call and the base of the first; judge models must exist too."""
    for model, number in models_that_judge(spec).items():
        if model not in services.remote_models:
            resolve_model(services, view, model, f"testing_criteria.{number}.model")
    if run.mens.noise_floor and run.mens.incumbent is None:
        message = "mens.noise_floor requests answers from the incumbent twice, but the run has no incumbent."
        raise InvalidRequest(
            Code.REQUEST_INVALID, message, remedy="Set mens.incumbent to a model.", param="mens.noise_floor"
        )
    source = run.data_source
    if isinstance(source, JsonlSource):
        if run.mens.incumbent or run.mens.samples > 1:
            field = "incumbent" if run.mens.incumbent else "samples"
            message = f"mens.{field} cannot be combined with a data source jsonl: its rows already have answers."
            raise InvalidRequest(
                Code.REQUEST_INVALID,
                message,
                remedy="Use a data source of type completions or responses.",
                param=f"mens.{field}",
            )
        return [], ""
    for field in ("model", "input_messages"):
        if not getattr(source, field):
            message = f"data_source.{field} is missing; it defines the prompts."
            raise InvalidRequest(
                Code.REQUEST_INVALID, message, param=f"data_source.{field}", details={"fault": "missing"}
            )
    first, base = resolve_model(services, view, str(source.model), "data_source.model")
    if run.mens.incumbent is None:
        return [first], base
    second, _ = resolve_model(services, view, run.mens.incumbent, "mens.incumbent")
    if second.served == first.served:
        message = f"mens.incumbent is {second.name!r}, which is the evaluated model itself: {first.served!r}."
        raise InvalidRequest(Code.REQUEST_INVALID, message, remedy="Name another model.", param="mens.incumbent")
    return [first, second], base


def _check_criteria(services: Services, spec: EvalSpec) -> None:
    """Check that every criterion can run here; code is compiled in a separate sandbox.

    Raises:
        InvalidRequest: the error of `check_runnable`, with the criterion as ``param``.
    """
    with ExitStack() as stack:
        sandbox = None
        for number, criterion in enumerate(spec.testing_criteria):
            try:
                if sandbox is None and has_code(criterion):
                    report = services.sandboxes.report()
                    sandbox = stack.enter_context(Sandbox.open(report, share=RUNS_AT_ONCE))
                check_runnable(criterion, sandbox, embeds=services.remote_models.embeds)
            except InvalidRequest as error:
                error.param = f"testing_criteria.{number}"
                raise


def _check_prompt(run: RunSpec) -> None:
    """Check that the served models can read a run's prompt for every item."""
    prompt = None if isinstance(run.data_source, JsonlSource) else run.data_source.input_messages
    for turn in prompt.template if isinstance(prompt, MessageTemplate) else ():
        try:
            check_text_alone(turn)
        except InvalidRequest as error:
            error.param = "data_source.input_messages"
            raise


@contextmanager
def _stored_items(
    services: Services, view: TenantView, source: FileContent | FileId
) -> Iterator[tuple[File, list[SourceItem] | None]]:
    """Yield the file of a run's items; inline rows are stored as a file, which is removed if the run is refused."""
    if isinstance(source, FileId):
        yield view.files.get(source.id, f"{SOURCE}.id"), None
        return
    with services.storage.writer() as writer:
        for row in source.content:
            line = json.dumps(row.model_dump(mode="json", exclude_none=True), ensure_ascii=False)
            writer.write(line.encode() + b"\n")
        sha256, quota = writer.finish(), services.settings.file_quota
        file = view.files.add(INLINE_NAME, "evals", writer.size, sha256, quota=quota, store=writer.commit)
    try:
        yield file, source.content
    except BaseException:
        # Delete the file for any exception: without a run that refers to it, it would stay permanently.
        view.files.delete(file.id, services.storage.delete_blob)
        raise


def _check_items(
    services: Services, file: File, inline: list[SourceItem] | None, spec: EvalSpec, run: RunSpec
) -> ItemsReport:
    source, limit = run.data_source, services.settings.max_eval_items
    is_sampled = not isinstance(source, JsonlSource)
    prompt = None if isinstance(source, JsonlSource) else source.input_messages
    with services.storage.local_file(file.sha256) as path:
        rows = inline if inline is not None else read_items(path)
        report = check_items(rows, spec, prompt, is_sampled=is_sampled, limit=limit)
    is_file = inline is None
    report.raise_if_invalid(f"{SOURCE}.id" if is_file else f"{SOURCE}.content", is_file=is_file)
    return report


def _check_request(services: Services, file: File, plan: EvaluationPlan) -> None:
    """Check the first request as the API does, so that a wrong sampling parameter is reported before any request is
    sent.

    Raises:
        InvalidRequest: an error of `api.inference.request_validation`.
    """
    if not plan.models or plan.input_messages is None:
        return
    with services.storage.local_file(file.sha256) as path:
        first = next(read_items(path))
    body = request_of(plan, plan.models[0], messages_of(plan.input_messages, first.item), 0)
    validate = validate_chat if plan.endpoint == "chat" else validate_response
    try:
        validate(body)
    except InvalidRequest as error:
        is_prompt = str(error.param).startswith(("messages", "input"))
        error.param = "data_source.input_messages" if is_prompt else f"data_source.sampling_params.{error.param}"
        raise


def _estimate(plan: EvaluationPlan, report: ItemsReport) -> dict[str, Any]:
    """Estimate a run's cost: the exact number of requests, the approximate number of prompt tokens, and the largest
    number of answer tokens.
    """
    judges = sum(1 for criterion in plan.testing_criteria if criterion.type in ("score_model", "label_model"))
    models = len(plan.models) + plan.noise_floor
    requests = plan.answers * models
    bound = plan.sampling.get("max_completion_tokens", plan.sampling.get("max_output_tokens"))
    return {
        "requests": requests,
        "judge_requests": judges * plan.answers * max(1, models),
        "prompt_tokens": report.prompt_characters * plan.samples * models // CHARACTERS_PER_TOKEN,
        "completion_tokens_at_most": None if bound is None else requests * bound,
    }
