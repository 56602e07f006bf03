"""Models that requests can name: bases, adapters, aliases, foreign names. OpenAI's /v1/models, and our own
/v1/adapters.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse

from api.inference.replicas.served_models import ServedModel
from api.openai.types import Model, ModelList, unix_seconds
from api.services import Services, ServicesDep
from api.web.auth import TRAINER, Caller, CallerDep
from api.web.params import NO_NUL, After, Id, Limit, Page, page_of
from api.web.tenant_view import TenantView, TenantViewDep, tenant_view
from shared.artifacts.base_folders import locate_fetched_base
from shared.artifacts.manifests import MANIFEST_NAME, AdapterManifest, ParentRef, parse_manifest
from shared.base_models.catalog import BaseModelEntry
from shared.base_models.config import parse_model_config
from shared.contract.auto_hyperparameters import auto_learning_rate
from shared.database.adapters import Adapter, PublishedAdapter
from shared.database.base_certificates import BaseCertificate, BaseCertificates, is_certified
from shared.database.gates.receipts import StoredReceipt
from shared.database.names.aliases import Alias
from shared.database.names.foreign_names import ForeignName
from shared.errors import Code, MensError, NotFound
from shared.hashing import digest_json
from shared.model_card.readme import AdapterRecord, CardReceipt, write_readme
from shared.model_card.self_evaluation import without_samples
from shared.retention.shutdown_dates import ShutdownDates

router = APIRouter(prefix="/v1", tags=["models"])

CATALOG_OWNER = "mens"
README_NAME = "README.md"
MAX_ANCESTORS = 20
"""Most ancestors that a card lists."""
CARD_RECEIPTS = 20
"""Newest receipts that a card lists."""
AdapterFile = Literal[
    "adapter_model.safetensors", "adapter_config.json", "adapter_manifest.json", "adapter_signature.json", "README.md"
]


@router.get("/models", response_model=ModelList)
async def list_models(services: ServicesDep, caller: CallerDep) -> Response:
    """All models that ``model`` can name: bases; adapters, checkpoints, aliases and foreign names of the tenant and of
    `shared`.

    A merged model is among the bases once a replica that serves it was measured, and none failed. `mens.served` of a
    base says whether a replica serves it now, `mens.serves_adapters` whether one serves adapters of it, as its twin
    does too; without these fields it is not known.
    """
    entries = await rendered_models(services, caller, _model_entry)
    return Response(b'{"object":"list","data":[%b]}' % entries, media_type="application/json")


async def rendered_models(services: Services, caller: Caller, render: Callable[[Model], bytes]) -> bytes:
    """Return the models of a list, rendered and joined with commas: bases at each request, because replicas decide
    which are served; all others once until one of them changes.
    """
    bases = await run_in_threadpool(_offered_bases, services)
    names, view = frozenset(base.id for base in bases), tenant_view(services, caller)
    named = await services.lookup.rendered(
        (render, caller.tenant, names), lambda: b",".join(map(render, _named_models(view, names)))
    )
    return b",".join([*map(render, bases), *([named] if named else [])])


def _model_entry(model: Model) -> bytes:
    return model.model_dump_json().encode()


def _offered_bases(services: Services) -> list[Model]:
    return [_base_model(services, base) for base in services.catalog().bases if _is_offered(services, base)]


def _named_models(view: TenantView, bases: Collection[str]) -> Iterator[Model]:
    """Yield the models other than bases: aliases, foreign names, adapters. No manifest is read."""
    adapters = {adapter.id: adapter for adapter in view.adapters.published()}
    ends = view.shutdown_dates(adapters.values())
    aliases = [alias for alias in view.aliases.all() if alias.adapter_id in adapters]
    yield from (_alias_model(alias, adapters[alias.adapter_id]) for alias in aliases)
    model_names = {*bases, *(alias.name for alias in aliases), *adapters}
    yield from (_foreign_model(name) for name in view.names.all() if name.stands_for.name in model_names)
    yield from (_adapter_model(adapter, ends) for adapter in adapters.values())


@router.get("/models/{model:path}")
def retrieve_model(model: Id, services: ServicesDep, caller: CallerDep) -> Model:
    """One model, by the name that a request's ``model`` would have; a merged model with its certificates, offered or not."""
    view = tenant_view(services, caller)
    for base in services.catalog().bases:
        if base.name == model:
            described = _base_model(services, base, _certificates(services, base))
            return described.model_copy(update={"mens": described.mens | _largest_sizes(services, base)})
    for adapter in view.adapters.with_ids([model], published_only=True):
        return _adapter_model(adapter, view.shutdown_dates([adapter]), adapter.template_arguments)
    if alias := view.aliases.find(model):
        for adapter in view.adapters.with_ids([alias.adapter_id], published_only=True):
            return _alias_model(alias, adapter, adapter.template_arguments if len(alias.targets) == 1 else {})
    return _retrieve_foreign(view, model)


def _largest_sizes(services: Services, base: BaseModelEntry) -> dict[str, int]:
    """Return the largest rank that is served and the base's positions, where they are known, so that clients can report
    a limit before they upload a file.
    """
    sizes = {"max_lora_rank": services.replicas.max_lora_rank(base.digest)}
    with suppress(MensError, OSError, ValueError):  # the base's files may be missing on this machine
        config = locate_fetched_base(base, services.settings) / "config.json"
        sizes["positions"] = parse_model_config(json.loads(config.read_bytes())).max_positions
    return {name: size for name, size in sizes.items() if size is not None}


def _retrieve_foreign(view: TenantView, model: str) -> Model:
    """Return a foreign name, or the checkpoint for a foreign name with a step."""
    destination = view.names.resolve(model)
    if destination is None:
        raise NotFound(
            Code.MODEL_NOT_FOUND,
            f"The model {model!r} does not exist.",
            remedy="List the available models with GET /v1/models.",
            param="model",
        )
    if name := view.names.find(model):
        return _foreign_model(name)
    adapter = view.adapters.get(destination.name)
    mens = {"kind": "foreign", "stands_for": {"kind": "adapter", "name": adapter.id}}
    return _adapter_model(adapter, view.shutdown_dates([adapter])).model_copy(update={"id": model, "mens": mens})


@router.get("/adapters")
def list_adapters(
    view: TenantViewDep,
    after: After = None,
    limit: Limit = 20,
    q: Annotated[
        str | None,
        Query(
            min_length=2,
            max_length=160,
            pattern=NO_NUL,
            description="The beginning of an adapter's id, or the beginning or end of its digest.",
        ),
    ] = None,
) -> Page[Adapter]:
    """Stored adapters with manifests and certificates, newest first, unpublished ones included; without sample answers."""
    adapters = view.adapters.page(after=after, limit=limit, text=q or "")
    listed = [adapter.model_copy(update={"metrics": without_samples(adapter.metrics)}) for adapter in adapters]
    return page_of(listed, limit)


@router.get("/adapters/{name}")
def retrieve_adapter(name: Id, view: TenantViewDep) -> Adapter:
    """One adapter, by its id or an alias. A deleted adapter keeps its record."""
    return view.adapters.get(name, deleted=True)


def _local_content(name: Id, file: AdapterFile, services: ServicesDep, view: TenantViewDep) -> Iterator[Path]:
    """Yield the file on this machine. A dependency, because the path must be valid until the response is sent."""
    adapter = view.adapters.get(name)
    with tempfile.TemporaryDirectory(prefix="mens-adapter-") as folder:
        target = Path(folder)
        stored = MANIFEST_NAME if file == README_NAME else file
        services.storage.fetch_folder("adapters", adapter.digest, [stored], target)
        if file == README_NAME:
            manifest = parse_manifest((target / MANIFEST_NAME).read_bytes(), adapter.digest)
            record = _card_record(services, view, adapter, manifest)
            (target / file).write_text(write_readme(record), encoding="utf-8")
        yield target / file


@router.get("/adapters/{name}/files/{file}", response_class=FileResponse, dependencies=TRAINER)
def adapter_file(file: AdapterFile, content: Annotated[Path, Depends(_local_content)]) -> FileResponse:
    """One file of an adapter, by its id or an alias: weights, PEFT's config, manifest, signature, or the model card as README.md."""
    return FileResponse(content, media_type="application/octet-stream", filename=file)


def _certificates(services: Services, base: BaseModelEntry) -> list[BaseCertificate] | None:
    return BaseCertificates(services.database).of(base.digest) if base.merged_from else None


def _is_offered(services: Services, base: BaseModelEntry) -> bool:
    certificates = _certificates(services, base)
    return certificates is None or is_certified(certificates)


def _base_model(
    services: Services, base: BaseModelEntry, certificates: Collection[BaseCertificate] | None = None
) -> Model:
    mens = {"kind": "base", "digest": base.digest, "learning_rate": auto_learning_rate(base.learning_rate)}
    if (served := services.replicas.serves(ServedModel(base.name, base.name, base.digest))) is not None:
        mens["served"] = served
    if (serves_adapters := services.replicas.serves_adapters_of(base.digest)) is not None:
        mens["serves_adapters"] = serves_adapters
    if base.twin_of:
        mens["twin_of"] = base.twin_of.name
    if base.merged_from:
        mens["merged_from"] = base.merged_from.model_dump()
    mens |= _arguments(base.template_arguments)
    if certificates is not None:
        measured = {measured_replica.replica: measured_replica.certificate for measured_replica in certificates}
        mens |= {"offered": is_certified(certificates), "certificates": measured}
    return Model(id=base.name, created=0, owned_by=CATALOG_OWNER, mens=mens)


def _adapter_model(
    adapter: Adapter | PublishedAdapter, ends: ShutdownDates, arguments: Mapping[str, Any] | None = None
) -> Model:
    kind = "adapter" if adapter.final else "checkpoint"
    mens = {"kind": kind, "base_model": adapter.base_model, "job_id": adapter.job_id, "step": adapter.step}
    mens |= _arguments(arguments or {})
    return Model(
        id=adapter.id,
        created=unix_seconds(adapter.created_at),
        owned_by=adapter.tenant,
        shutdown_date=ends.get((adapter.tenant, adapter.id)),
        mens=mens,
    )


def _alias_model(
    alias: Alias, adapter: Adapter | PublishedAdapter, arguments: Mapping[str, Any] | None = None
) -> Model:
    mens: dict[str, Any] = {"kind": "alias", "adapter_id": adapter.id, "base_model": adapter.base_model}
    mens |= _arguments(arguments or {})
    if len(alias.targets) > 1:
        mens["targets"] = [target.model_dump() for target in alias.targets]
    return Model(id=alias.name, created=unix_seconds(alias.moved_at), owned_by=alias.tenant, mens=mens)


def _arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default template arguments of a model's chats, if it has any."""
    return {"template_arguments": dict(arguments)} if arguments else {}


def _foreign_model(name: ForeignName) -> Model:
    mens = {"kind": "foreign", "stands_for": name.stands_for.model_dump()}
    return Model(id=name.name, created=unix_seconds(name.moved_at), owned_by=name.tenant, mens=mens)


def _card_record(services: Services, view: TenantView, adapter: Adapter, manifest: AdapterManifest) -> AdapterRecord:
    bases = {base.name: base for base in services.catalog().bases}
    base = bases.get(adapter.base_model)
    try:
        job = view.jobs.get(adapter.job_id)
    except NotFound:
        job = None
    return AdapterRecord(
        manifest=manifest,
        metrics=adapter.metrics,
        certificates=adapter.certificates,
        license=base.license if base else None,
        repository=base.repository_of(manifest.base_digests) if base else None,
        job={"plan": job.plan, "contract": job.contract, "result": job.result}
        if job and job.kind == "finetune"
        else None,
        ancestors=tuple(_ancestors(view, manifest.parent)),
        receipts=tuple(map(_card_receipt, view.receipts.list(adapter=adapter.id, limit=CARD_RECEIPTS)[:CARD_RECEIPTS])),
    )


def _ancestors(view: TenantView, parent: ParentRef | None) -> Iterator[ParentRef]:
    """Yield the adapters that an adapter was continued from, its parent first, up to the first whose record the tenant
    cannot see.
    """
    for _ in range(MAX_ANCESTORS):
        if parent is None:
            return
        yield parent
        try:
            grandparent = view.adapters.get(parent.id, deleted=True).manifest.get("parent")
        except NotFound:
            return
        parent = ParentRef.model_validate(grandparent) if grandparent else None


def _card_receipt(stored: StoredReceipt) -> CardReceipt:
    policy, digest = stored.receipt["policy"]["name"], stored.policy_digest
    return CardReceipt(
        id=stored.id, policy=policy, policy_digest=digest, passed=stored.passed, digest=digest_json(stored.receipt)
    )
