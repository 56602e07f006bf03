"""An installation with tenants: objects of each tenant, and callers of every kind."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import count
from pathlib import Path

from fastapi import FastAPI

from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME
from shared.contract.contracts import FineTuneContract
from shared.database.adapters import NewAdapter
from shared.database.evaluation.evals import Evals
from shared.database.evaluation.items import NewItem
from shared.database.leases import Leases
from shared.database.lending.checkpoint_permissions import CheckpointPermissions
from shared.database.names.aliases import Actor
from shared.database.names.foreign_names import ForeignNames
from shared.database.records import Job, Kind, Submission
from shared.database.routing import Routing, StandsFor
from shared.database.tenancy import SHARED, Role
from shared.database.webhooks.endpoints import Endpoints
from shared.evaluation.plan import EvaluationPlan
from shared.evaluation.types import Answer, ItemResult
from shared.hashing import digest_json
from shared.webhooks.events import EventType
from tests.support.builders import BASE, ROWS
from tests.support.gate_rows import STRICT, govern, receipt, store
from tests.support.sign_ins import CHALLENGE

ACME, OTHER = "acme", "other"
TENANTS = (ACME, OTHER, SHARED)
NOBODY = "nobody"
"""Owner of objects that do not exist."""
EQUALS = {
    "type": "string_check",
    "name": "equals",
    "input": "{{ sample.output_text }}",
    "reference": "x",
    "operation": "eq",
}
"""A criterion of an eval."""
PART_ID = "part-00000000000000000000000000"
"""Fields that the completion of an upload names."""
REFUSAL = {"no key": (401, "KEY_MISSING"), "a wrong key": (401, "KEY_INVALID"), "a revoked key": (401, "KEY_INVALID")}


@dataclass(frozen=True)
class Asker:
    """A caller: its tenant and role; ``refused`` is the response that it gets wherever a key is required."""

    name: str
    headers: dict[str, str]
    tenant: str = NOBODY
    role: Role = Role.VIEWER
    is_operator: bool = False
    refused: tuple[int, str] | None = None


class Installation:
    """Creates objects and callers with the operations that the API and the workers use."""

    def __init__(self, app: FastAPI) -> None:
        self._services = app.state.services
        self._leases = Leases(self._services.database, 60)
        self._numbers = count(1)
        store(self._services.database, "everyones", STRICT)

    # -- things: each call makes another one, and returns its id -------------------------------------------------------

    def file(self, tenant: str) -> str:
        """An uploaded file with unique content."""
        with self._services.storage.writer() as writer:
            writer.write(ROWS + b'{"prompt": "c", "response": "%d"}\n' % next(self._numbers))
            sha256 = writer.commit()
        return str(self._services.files.of(tenant).add("rows.jsonl", "fine-tune", len(ROWS), sha256).id)

    def pending_upload(self, tenant: str) -> str:
        """An upload that accepts parts."""
        return str(self._services.uploads.of(tenant).create("rows.jsonl", "fine-tune", 10, timedelta(hours=1)).id)

    def completed_upload(self, tenant: str) -> str:
        """An upload that was completed with the part of `PART_ID`; the completion can be repeated."""
        upload_id, digest = self.pending_upload(tenant), digest_json([PART_ID])
        self._services.uploads.of(tenant).complete(upload_id, digest, digest)
        return upload_id

    def queued_job(self, tenant: str) -> str:
        """A job that waits for a worker."""
        return self._submit(tenant).id

    def paused_job(self, tenant: str) -> str:
        """A job that was paused before a worker claimed it."""
        return str(self._services.jobs.of(tenant).pause(self._submit(tenant).id).id)

    def eval(self, tenant: str) -> str:
        """An eval without a run."""
        spec = {"data_source_config": {"type": "custom", "item_schema": {}}, "testing_criteria": [EQUALS]}
        return Evals(self._services.database, tenant).create("", {}, spec).id

    def eval_run(self, tenant: str) -> str:
        """A run that waits for a worker; returns the ids of its eval and of the run."""
        eval_id = self.eval(tenant)
        items = {"file_id": "file-0", "sha256": "a" * 64, "count": 1}
        plan = EvaluationPlan.model_validate({"eval_id": eval_id, "testing_criteria": [EQUALS], "items": items})
        made = {"kind": Kind.EVALUATE, "base_model": "", "name": "run", "contract": {}, "eval_id": eval_id}
        submission = Submission.model_validate(made | {"plan": plan.model_dump(mode="json")})
        return f"{eval_id} {self._services.jobs.of(tenant).submit(submission)[0].id}"

    def ended_eval_run(self, tenant: str) -> str:
        """As `run`, but the run was cancelled."""
        ids = self.eval_run(tenant)
        self._services.jobs.of(tenant).cancel(ids.split(" ")[1])
        return ids

    def eval_item(self, tenant: str) -> str:
        """As `run`, with the id of an output item in addition."""
        ids = self.eval_run(tenant)
        run_id = ids.split(" ")[1]
        lease = self._leases.claim(run_id, "worker")
        assert lease
        result = ItemResult(item_index=0, item={"a": "x"}, answer=Answer(sample={"output_text": "x"}))
        item = NewItem(position=0, status=result.status, result=result.model_dump(mode="json"))
        self._leases.store_items(lease, run_id, [item], {})
        return f"{ids} {run_id}-0"

    def finished_job(self, tenant: str) -> str:
        """A job with events, a preflight and two adapters, one of them a checkpoint."""
        return self._finish(tenant)[0]

    def adapter(self, tenant: str) -> str:
        """A published adapter."""
        return self._finish(tenant)[1]

    def checkpoint_permission(self, tenant: str) -> str:
        """A permission of another tenant for an adapter; returns the ids of the adapter and of the permission."""
        adapter_id = self.adapter(tenant)
        return (
            f"{adapter_id} {CheckpointPermissions(self._services.database, tenant).grant(adapter_id, ['guest'])[0].id}"
        )

    def stored_adapter(self, tenant: str) -> str:
        """A published adapter with files in the storage."""
        adapter_id = self.adapter(tenant)
        with tempfile.TemporaryDirectory() as folder:
            for name in (CONFIG_NAME, MANIFEST_NAME):
                (Path(folder) / name).write_text("{}")
            digest = adapter_id.rpartition("@")[2]
            self._services.storage.put_folder("adapters", digest, Path(folder), [CONFIG_NAME], MANIFEST_NAME)
        return adapter_id

    def alias(self, tenant: str) -> str:
        """An alias that has moved once, so that it can be rolled back."""
        name, aliases = f"{tenant}-alias-{next(self._numbers)}", self._services.aliases.of(tenant)
        for _ in range(2):
            aliases.set(name, Routing.to(self.adapter(tenant)), Actor(id="key-0", name="test"))
        return name

    def foreign_name(self, tenant: str) -> str:
        """A foreign name of an alias."""
        name, stands_for = f"ft:{tenant}:{next(self._numbers)}", StandsFor(kind="alias", name=self.alias(tenant))
        names = ForeignNames(self._services.database, tenant)
        names.set(name, stands_for, Actor(id="key-0", name="test"), bases=())
        return name

    def policy(self, tenant: str) -> str:
        """A policy that is not assigned."""
        name = f"policy-{next(self._numbers)}"
        store(self._services.database, name, STRICT, tenant)
        return name

    def assignment(self, tenant: str) -> str:
        """The name of an alias under a policy, as policy assignments use it."""
        scope = f"alias:governed-{next(self._numbers)}"
        govern(self._services.database, scope, tenant=tenant)
        return scope

    def receipt(self, tenant: str) -> str:
        """A receipt of an adapter."""
        return receipt(self._services.database, "helper@1", tenant=tenant).id

    def key(self, tenant: str) -> str:
        """An API key."""
        return str(self._services.keys.create(f"key {next(self._numbers)}", tenant, Role.VIEWER)[0].id)

    def sign_in(self, tenant: str) -> str:
        """A sign-in of a key."""
        secret = self._services.keys.create(f"key {next(self._numbers)}", tenant, Role.VIEWER)[1]
        return str(self._services.sign_ins.create(secret, CHALLENGE)[0].id)

    def webhook_endpoint(self, tenant: str) -> str:
        """An endpoint of webhooks."""
        endpoints = Endpoints(self._services.database, tenant)
        # Of the twenty that a tenant may have, none is left over.
        for endpoint in endpoints.list(limit=100):
            endpoints.delete(endpoint.id)
        return endpoints.create("hook", "https://hooks.example/x", [EventType.JOB_FAILED])[0].id

    # -- askers --------------------------------------------------------------------------------------------------------

    @cached_property
    def askers(self) -> list[Asker]:
        """All callers: without a key, of each tenant in each role, the operator, and one with an invalid key."""
        return [*self._keyless(), *self._members(), *self._for_other_tenants()]

    def bearer(self, tenant: str, role: Role) -> dict[str, str]:
        """The header for a new key."""
        secret = self._services.keys.create(f"{role} {next(self._numbers)} of {tenant}", tenant, role)[1]
        return {"Authorization": f"Bearer {secret}"}

    def _keyless(self) -> Iterator[Asker]:
        revoked, secret = self._services.keys.create("revoked")
        self._services.keys.revoke(revoked.id)
        headers = [{}, {"Authorization": "Bearer mens-wrong"}, {"Authorization": f"Bearer {secret}"}]
        for (name, refused), header in zip(REFUSAL.items(), headers, strict=True):
            yield Asker(name, header, refused=refused)

    def _members(self) -> Iterator[Asker]:
        for tenant in TENANTS:
            for role in Role:
                is_operator = (tenant, role) == (SHARED, Role.ADMIN)
                yield Asker(f"{role} of {tenant}", self.bearer(tenant, role), tenant, role, is_operator)

    def _for_other_tenants(self) -> Iterator[Asker]:
        operator = self.bearer(SHARED, Role.ADMIN)
        for tenant in (ACME, OTHER):
            headers = operator | {"X-Mens-Tenant": tenant}
            yield Asker(f"the operator for {tenant}", headers, tenant, Role.ADMIN, is_operator=True)
        for own, role, wanted in ((ACME, Role.ADMIN, OTHER), (ACME, Role.ADMIN, SHARED), (SHARED, Role.TRAINER, ACME)):
            headers = self.bearer(own, role) | {"X-Mens-Tenant": wanted}
            yield Asker(f"{role} of {own} for {wanted}", headers, refused=(403, "TENANT_FORBIDDEN"))
        yield Asker("admin of acme for acme", self.bearer(ACME, Role.ADMIN) | {"X-Mens-Tenant": ACME}, ACME, Role.ADMIN)

    def _submit(self, tenant: str) -> Job:
        contract = FineTuneContract.model_validate({"model": {"hf_repo": BASE}, "data": {"train_file": "file-1"}})
        submission = Submission(
            kind=Kind.FINETUNE,
            base_model=BASE,
            name="helper",
            contract=contract.model_dump(mode="json"),
            plan={"contract_digest": "0" * 64},
            preflight={"found": "nothing"},
        )
        job: Job = self._services.jobs.of(tenant).submit(submission)[0]
        return job

    def _finish(self, tenant: str) -> tuple[str, str]:
        lease = self._leases.claim(self._submit(tenant).id, "worker")
        assert lease
        checkpoint, final = self._new_adapter(final=False), self._new_adapter(final=True)
        self._leases.finish(lease, {"adapter_id": final.id}, adapters=[checkpoint, final])
        return lease.job.id, final.id

    def _new_adapter(self, *, final: bool) -> NewAdapter:
        digest = hashlib.sha256(str(next(self._numbers)).encode()).hexdigest()
        return NewAdapter(
            id=f"helper@{digest}",
            digest=digest,
            base_model=BASE,
            step=1 + final,
            final=final,
            published=True,
            manifest={"name": "helper", "base_digests": self._services.catalog().get(BASE).digests},
        )
