"""The access matrix: for each route, the required role, and whose objects it reads or changes.

docs/tenants.md describes the same rules. If a route is missing here, `test_access.py` fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from fastapi.testclient import TestClient

from api.web.console.files import console_files
from shared.database.records import new_id
from shared.database.tenancy import Role
from tests.support.builders import BASE
from tests.support.gate_rows import STRICT
from tests.support.scorecards import promotion_cycle
from tests.support.sign_ins import CHALLENGE
from tests.support.tenants import EQUALS, NOBODY, PART_ID, Installation

PERMISSIONS = "/v1/fine_tuning/checkpoints/{model}/permissions"
UPLOAD = {"data": {"purpose": "fine-tune"}, "files": {"file": ("rows.jsonl", b'{"prompt": "a", "response": "b"}\n')}}


class Rule(Enum):
    """Who is allowed by a route, besides the role."""

    OPEN = auto()
    """Every caller, with or without a key."""
    KEYED = auto()
    """Every caller with a key: the request concerns no other tenant's objects."""
    SEE = auto()
    """Callers who see the object: those of its tenant, and all when it is shared."""
    CHANGE = auto()
    """Callers of the object's tenant. Others who see it get a 403."""
    OWN = auto()
    """Callers of the object's tenant. For others it does not exist, even when it is shared."""
    OPERATE = auto()
    """Operators."""


@dataclass(frozen=True)
class Kind:
    """A kind of object: a function that creates one, and the error code when none exists."""

    make: Callable[[Installation, str], str]
    unknown: str
    sample: str

    def thing(self, installation: Installation, owner: str) -> str:
        """The id of a new object, or of none."""
        return self.sample if owner == NOBODY else self.make(installation, owner)


FILE = Kind(Installation.file, "FILE_NOT_FOUND", "file-00000000000000000000000000")
UPLOADING = Kind(Installation.pending_upload, "UPLOAD_NOT_FOUND", "upload-00000000000000000000000000")
UPLOADED = Kind(Installation.completed_upload, "UPLOAD_NOT_FOUND", "upload-00000000000000000000000000")
QUEUED = Kind(Installation.queued_job, "JOB_NOT_FOUND", "ftjob-00000000000000000000000000")
PAUSED = Kind(Installation.paused_job, "JOB_NOT_FOUND", "ftjob-00000000000000000000000000")
FINISHED = Kind(Installation.finished_job, "JOB_NOT_FOUND", "ftjob-00000000000000000000000000")
ADAPTER = Kind(Installation.adapter, "ADAPTER_NOT_FOUND", "helper@" + "0" * 64)
STORED_ADAPTER = Kind(Installation.stored_adapter, "ADAPTER_NOT_FOUND", "helper@" + "0" * 64)
MODEL = Kind(Installation.adapter, "MODEL_NOT_FOUND", "helper@" + "0" * 64)
PERMISSION = Kind(
    Installation.checkpoint_permission, "MODEL_NOT_FOUND", f"helper@{'0' * 64} cp-00000000000000000000000000"
)
ALIAS = Kind(Installation.alias, "ALIAS_NOT_FOUND", "nobody-alias-0")
ALIASED = Kind(Installation.alias, "MODEL_NOT_FOUND", "nobody-alias-0")
ALIASED_ADAPTER = Kind(Installation.alias, "ADAPTER_NOT_FOUND", "nobody-alias-0")
NAME = Kind(Installation.foreign_name, "NAME_NOT_FOUND", "ft:nobody:0")
NAMED = Kind(Installation.foreign_name, "MODEL_NOT_FOUND", "ft:nobody:0")
POLICY = Kind(Installation.policy, "POLICY_NOT_FOUND", "policy-0")
ASSIGNMENT = Kind(Installation.assignment, "POLICY_NOT_FOUND", "alias:governed-0")
RECEIPT = Kind(Installation.receipt, "RECEIPT_NOT_FOUND", "receipt-00000000000000000000000000")
EVAL = Kind(Installation.eval, "EVAL_NOT_FOUND", "eval-00000000000000000000000000")
NO_RUN = "eval-00000000000000000000000000 ftjob-00000000000000000000000000"
RUN = Kind(Installation.eval_run, "EVAL_RUN_NOT_FOUND", NO_RUN)
ENDED_RUN = Kind(Installation.ended_eval_run, "EVAL_RUN_NOT_FOUND", NO_RUN)
RUN_ITEM = Kind(Installation.eval_item, "EVAL_RUN_NOT_FOUND", f"{NO_RUN} ftjob-00000000000000000000000000-0")
WEBHOOK = Kind(Installation.webhook_endpoint, "WEBHOOK_NOT_FOUND", "webhook-00000000000000000000000000")
SIGN_IN = Kind(Installation.sign_in, "SIGN_IN_NOT_FOUND", "signin-00000000000000000000000000")
KEY = Kind(Installation.key, "KEY_NOT_FOUND", "key-00000000000000000000000000")


def nothing(_: str) -> dict[str, Any]:
    """A request without a body."""
    return {}


@dataclass(frozen=True)
class Case:
    """One request to a route. The object's id is in the path where it has a parameter, or in the body."""

    rule: Rule
    role: Role = Role.VIEWER
    kind: Kind | None = None
    body: Callable[[str], dict[str, Any]] = nothing
    path: dict[str, str] = field(default_factory=dict)
    passes: int = 200

    def url(self, template: str, thing: str) -> str:
        """The route's path with its parameters filled in; an object inside of another one has both ids, with a space between."""
        parts = [part.partition("}")[0] for part in template.split("{")[1:]]
        ids = thing.split(" ") if " " in thing else [thing] * len(parts)
        for part, id_ in zip(parts, ids, strict=False):
            template = template.replace(f"{{{part}}}", self.path.get(part, id_))
        return template

    def send(self, client: TestClient, route: str, headers: dict[str, str], thing: str) -> Any:
        """Send the request, which is about a thing, to a route of the matrix."""
        method, template = route.split(" ")
        return client.request(method, self.url(template, thing), headers=headers, **self.body(thing))


def fine_tune(file_id: str) -> dict[str, Any]:
    return {"json": {"kind": "finetune", "contract": contract(file_id)}}


def contract(file_id: str) -> dict[str, Any]:
    return {"model": {"hf_repo": BASE}, "data": {"train_file": file_id}}


def merge(adapter: str) -> dict[str, Any]:
    return {"json": {"kind": "merge", "contract": {"adapter": adapter}}}


def openai_job(file_id: str) -> dict[str, Any]:
    return {"json": {"model": BASE, "training_file": file_id}}


def new_eval(_: str) -> dict[str, Any]:
    return {"json": {"data_source_config": {"type": "custom", "item_schema": {}}, "testing_criteria": [EQUALS]}}


def new_run(_: str) -> dict[str, Any]:
    rows = [{"item": {"a": "x"}, "sample": {"output_text": "x"}}]
    return {"json": {"data_source": {"type": "jsonl", "source": {"type": "file_content", "content": rows}}}}


def evaluate(eval_id: str) -> dict[str, Any]:
    return {"json": {"kind": "evaluate", "eval": eval_id, "run": new_run("")["json"]}}


def no_kind(_: str) -> dict[str, Any]:
    """A stream of changes that does not begin, because it would not end."""
    return {"params": {"kind": "none"}}


def chat(model: str) -> dict[str, Any]:
    return {"json": {"model": model, "messages": [{"role": "user", "content": "Hello?"}], "stream": False}}


def prompt(model: str) -> dict[str, Any]:
    return {"json": {"model": model, "prompt": "Hello?", "stream": False}}


def respond(model: str) -> dict[str, Any]:
    return {"json": {"model": model, "input": "Hello?", "stream": False}}


def generate(model: str) -> dict[str, Any]:
    return {"json": {"model": model, "prompt": "Hello?", "stream": False}}


def point_to(adapter: str) -> dict[str, Any]:
    return {"json": {"adapter": adapter}}


def stand_for(alias: str) -> dict[str, Any]:
    return {"json": {"alias": alias}}


def promotion_at(alias: str) -> dict[str, Any]:
    return {"json": {"alias": alias, "cycles": [promotion_cycle(tasks=2).model_dump(mode="json")]}}


def new_policy(_: str) -> dict[str, Any]:
    return {"json": {"name": "new", "source": STRICT}}


def govern_by(policy: str) -> dict[str, Any]:
    return {"json": {"policy": policy}}


def judge_by(adapter: str) -> dict[str, Any]:
    return {"json": {"adapter": adapter, "alias": "judged", "policy": "everyones"}}


def new_key(_: str) -> dict[str, Any]:
    return {"json": {"name": new_id("new"), "role": "viewer"}}


def new_limits(_: str) -> dict[str, Any]:
    return {"json": {"requests_per_minute": 60}}


def no_overlap(_: str) -> dict[str, Any]:
    return {"json": {"overlap_seconds": 0}}


def lower_priority(_: str) -> dict[str, Any]:
    return {"json": {"priority": -1}}


def new_quota(_: str) -> dict[str, Any]:
    return {"json": {"running_jobs": 1000}}


def prune_nothing(_: str) -> dict[str, Any]:
    return {"json": {"through": 0, "events": 0}}


def new_webhook(_: str) -> dict[str, Any]:
    return {"json": {"name": "new", "url": "https://hooks.example/new", "event_types": ["eval.run.failed"]}}


def try_webhook(_: str) -> dict[str, Any]:
    return {"json": {"wait_seconds": 0}}


def upload(_: str) -> dict[str, Any]:
    return UPLOAD


def new_upload(_: str) -> dict[str, Any]:
    return {"json": {"bytes": 10, "filename": "rows.jsonl", "mime_type": "text/jsonl", "purpose": "fine-tune"}}


def upload_part(_: str) -> dict[str, Any]:
    return {"files": {"data": ("part", b"x")}}


def join_parts(_: str) -> dict[str, Any]:
    return {"json": {"part_ids": [PART_ID]}}


GRADER = {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "a", "operation": "eq"}


def run_grader(_: str) -> dict[str, Any]:
    return {"json": {"grader": GRADER, "model_sample": "a"}}


def validate_grader(_: str) -> dict[str, Any]:
    return {"json": {"grader": GRADER}}


def sign_in(_: str) -> dict[str, Any]:
    return {"json": {"challenge": CHALLENGE}}


TRAINER, ADMIN = Role.TRAINER, Role.ADMIN
STYLE = {"digest": console_files().digest, "path:path": "style.css"}
NO_REPLICA = 503
"""An allowed request to a model gets as far as the replica, which does not exist."""
OPEN, KEYED, OPERATE = Case(Rule.OPEN), Case(Rule.KEYED), Case(Rule.OPERATE)
CHAT = tuple(Case(Rule.SEE, kind=kind, body=chat, passes=NO_REPLICA) for kind in (MODEL, ALIASED, NAMED))
RESPOND = tuple(Case(Rule.SEE, kind=kind, body=respond, passes=NO_REPLICA) for kind in (MODEL, ALIASED, NAMED))
PROMPT = tuple(Case(Rule.SEE, kind=kind, body=prompt, passes=NO_REPLICA) for kind in (MODEL, ALIASED, NAMED))
GENERATE = tuple(Case(Rule.SEE, kind=kind, body=generate, passes=NO_REPLICA) for kind in (MODEL, ALIASED, NAMED))
TOKENS = tuple(Case(Rule.SEE, TRAINER, kind, prompt, passes=NO_REPLICA) for kind in (MODEL, ALIASED, NAMED))

MATRIX: dict[str, tuple[Case, ...]] = {
    "GET /health": (OPEN,),
    "GET /ready": (OPEN,),
    "GET /": (OPEN,),
    "GET /console/{digest}/{path:path}": (Case(Rule.OPEN, path=STYLE),),
    "GET /console/callback": (OPEN,),
    "GET /v1/me": (KEYED,),
    "GET /v1/sign_in": (OPEN,),
    "POST /v1/sign_in/oidc": (Case(Rule.OPEN, passes=422),),
    "POST /v1/sign_in/oidc/callback": (Case(Rule.OPEN, passes=422),),
    "POST /v1/sign_ins": (Case(Rule.KEYED, body=sign_in, passes=201),),
    "GET /v1/sign_ins": (KEYED,),
    "DELETE /v1/sign_ins/{sign_in_id}": (Case(Rule.OWN, Role.ADMIN, SIGN_IN),),
    "POST /v1/sign_in_codes": (Case(Rule.KEYED, passes=201),),
    "GET /v1/openapi.json": (KEYED,),
    "GET /v1/contract/schema": (KEYED,),
    "GET /v1/capabilities": (KEYED,),
    "GET /v1/replicas": (OPERATE,),
    "GET /v1/quota": (KEYED,),
    "PATCH /v1/quota": (Case(Rule.OPERATE, body=new_quota),),
    "GET /v1/quotas": (OPERATE,),
    "GET /v1/tenants": (OPERATE,),
    "GET /v1/tenants/{name}": (Case(Rule.OPERATE, path={"name": "acme"}),),
    "GET /v1/audit": (Case(Rule.KEYED, ADMIN),),
    "POST /v1/audit/prune": (Case(Rule.OPERATE, body=prune_nothing),),
    # files
    "GET /v1/files": (KEYED,),
    "POST /v1/files": (Case(Rule.KEYED, TRAINER, body=upload),),
    "GET /v1/files/{file_id}": (Case(Rule.SEE, kind=FILE),),
    "GET /v1/files/{file_id}/content": (Case(Rule.SEE, kind=FILE),),
    "GET /v1/files/{file_id}/rows": (Case(Rule.SEE, kind=FILE),),
    "GET /v1/files/{file_id}/report": (Case(Rule.SEE, kind=FILE),),
    "DELETE /v1/files/{file_id}": (Case(Rule.CHANGE, TRAINER, FILE),),
    "POST /v1/uploads": (Case(Rule.KEYED, TRAINER, body=new_upload),),
    "GET /v1/uploads/{upload_id}": (Case(Rule.OWN, kind=UPLOADING),),
    "POST /v1/uploads/{upload_id}/parts": (Case(Rule.OWN, TRAINER, UPLOADING, upload_part),),
    "POST /v1/uploads/{upload_id}/complete": (Case(Rule.OWN, TRAINER, UPLOADED, join_parts),),
    "POST /v1/uploads/{upload_id}/cancel": (Case(Rule.OWN, TRAINER, UPLOADING),),
    # jobs
    "GET /v1/jobs:count": (KEYED,),
    "GET /v1/jobs": (KEYED,),
    "POST /v1/jobs": (
        Case(Rule.SEE, TRAINER, FILE, fine_tune, passes=201),
        Case(Rule.SEE, TRAINER, ADAPTER, merge, passes=201),
        Case(Rule.SEE, TRAINER, ALIASED_ADAPTER, merge, passes=201),
        Case(Rule.SEE, TRAINER, EVAL, evaluate, passes=201),
    ),
    "POST /v1/plans": (Case(Rule.SEE, TRAINER, FILE, lambda file_id: {"json": {"contract": contract(file_id)}}),),
    "POST /v1/plans:compare": (Case(Rule.SEE, kind=FINISHED, body=lambda job_id: {"json": {"jobs": [job_id]}}),),
    "GET /v1/jobs/{job_id}": (Case(Rule.SEE, kind=FINISHED),),
    "PATCH /v1/jobs/{job_id}": (Case(Rule.CHANGE, TRAINER, QUEUED, lower_priority),),
    "GET /v1/jobs/{job_id}/preflight": (Case(Rule.SEE, kind=FINISHED),),
    "GET /v1/jobs/{job_id}/metrics": (Case(Rule.SEE, kind=FINISHED),),
    "GET /v1/jobs/{job_id}/log": (Case(Rule.OWN, TRAINER, FINISHED),),
    "GET /v1/events": (Case(Rule.KEYED, body=no_kind, passes=422),),
    "GET /v1/jobs/{job_id}/events": (Case(Rule.SEE, kind=FINISHED),),
    "GET /v1/jobs/{job_id}/checkpoints": (Case(Rule.SEE, kind=FINISHED),),
    "POST /v1/jobs/{job_id}/cancel": (Case(Rule.CHANGE, TRAINER, QUEUED),),
    "POST /v1/jobs/{job_id}/pause": (Case(Rule.CHANGE, TRAINER, QUEUED),),
    "POST /v1/jobs/{job_id}/resume": (Case(Rule.CHANGE, TRAINER, PAUSED),),
    "GET /v1/estimates/accuracy": (KEYED,),
    "GET /v1/workers": (KEYED,),
    "GET /v1/fine_tuning/jobs": (KEYED,),
    "POST /v1/fine_tuning/jobs": (Case(Rule.SEE, TRAINER, FILE, openai_job),),
    "GET /v1/fine_tuning/jobs/{job_id}": (Case(Rule.SEE, kind=FINISHED),),
    "GET /v1/fine_tuning/jobs/{job_id}/events": (Case(Rule.SEE, kind=FINISHED),),
    "GET /v1/fine_tuning/jobs/{job_id}/checkpoints": (Case(Rule.SEE, kind=FINISHED),),
    "POST /v1/fine_tuning/alpha/graders/run": (Case(Rule.KEYED, TRAINER, body=run_grader),),
    "POST /v1/promotions:evaluate": (Case(Rule.SEE, TRAINER, ALIAS, promotion_at),),
    "POST /v1/fine_tuning/alpha/graders/validate": (Case(Rule.KEYED, TRAINER, body=validate_grader),),
    "POST /v1/fine_tuning/jobs/{job_id}/cancel": (Case(Rule.CHANGE, TRAINER, QUEUED),),
    "POST /v1/fine_tuning/jobs/{job_id}/pause": (Case(Rule.CHANGE, TRAINER, QUEUED),),
    "POST /v1/fine_tuning/jobs/{job_id}/resume": (Case(Rule.CHANGE, TRAINER, PAUSED),),
    f"GET {PERMISSIONS}": (Case(Rule.CHANGE, ADMIN, MODEL),),
    f"POST {PERMISSIONS}": (Case(Rule.CHANGE, ADMIN, MODEL, lambda _: {"json": {"project_ids": ["guest"]}}),),
    f"DELETE {PERMISSIONS}/{{permission_id}}": (Case(Rule.CHANGE, ADMIN, PERMISSION),),
    # evals
    "GET /v1/evals": (KEYED,),
    "POST /v1/evals": (Case(Rule.KEYED, TRAINER, body=new_eval, passes=201),),
    "GET /v1/evals/{eval_id}": (Case(Rule.SEE, kind=EVAL),),
    "POST /v1/evals/{eval_id}": (Case(Rule.CHANGE, TRAINER, EVAL, lambda _: {"json": {"name": "new"}}),),
    "DELETE /v1/evals/{eval_id}": (Case(Rule.CHANGE, TRAINER, EVAL),),
    "GET /v1/evals/{eval_id}/runs": (Case(Rule.SEE, kind=EVAL),),
    "POST /v1/evals/{eval_id}/runs": (Case(Rule.SEE, TRAINER, EVAL, new_run, passes=201),),
    "GET /v1/evals/{eval_id}/runs/{run_id}": (Case(Rule.SEE, kind=RUN),),
    "DELETE /v1/evals/{eval_id}/runs/{run_id}": (Case(Rule.CHANGE, TRAINER, ENDED_RUN),),
    "POST /v1/evals/{eval_id}/runs/{run_id}": (Case(Rule.CHANGE, TRAINER, RUN),),
    "POST /v1/evals/{eval_id}/runs/{run_id}/cancel": (Case(Rule.CHANGE, TRAINER, RUN),),
    "GET /v1/evals/{eval_id}/runs/{run_id}/output_items": (Case(Rule.SEE, kind=RUN),),
    "GET /v1/evals/{eval_id}/runs/{run_id}/output_items/{output_item_id}": (Case(Rule.SEE, kind=RUN_ITEM),),
    # models and aliases
    "GET /v1/models": (KEYED,),
    "GET /v1/models/{model:path}": (
        Case(Rule.SEE, kind=MODEL),
        Case(Rule.SEE, kind=ALIASED),
        Case(Rule.SEE, kind=NAMED),
    ),
    "DELETE /v1/models/{model:path}": (Case(Rule.CHANGE, ADMIN, MODEL),),
    "GET /v1/adapters": (KEYED,),
    "GET /v1/adapters/{name}": (Case(Rule.SEE, kind=ADAPTER), Case(Rule.SEE, kind=ALIASED_ADAPTER)),
    "GET /v1/adapters/{name}/files/{file}": (
        Case(Rule.SEE, TRAINER, STORED_ADAPTER, path={"file": "adapter_config.json"}),
    ),
    "GET /v1/aliases": (KEYED,),
    "GET /v1/aliases/{name}": (Case(Rule.SEE, kind=ALIAS),),
    "GET /v1/aliases/{name}/history": (Case(Rule.SEE, kind=ALIAS),),
    "GET /v1/aliases/{name}/shadow": (Case(Rule.SEE, kind=ALIAS),),
    "PUT /v1/aliases/{name}": (Case(Rule.SEE, TRAINER, ADAPTER, point_to, {"name": "put"}),),
    "POST /v1/aliases/{name}/rollback": (Case(Rule.CHANGE, TRAINER, ALIAS),),
    "DELETE /v1/aliases/{name}": (Case(Rule.CHANGE, TRAINER, ALIAS),),
    "GET /v1/names": (KEYED,),
    "GET /v1/names/{name}": (Case(Rule.SEE, kind=NAME),),
    "GET /v1/names/{name}/history": (Case(Rule.SEE, kind=NAME),),
    "PUT /v1/names/{name}": (Case(Rule.SEE, TRAINER, ALIAS, stand_for, {"name": "ft:put"}),),
    "DELETE /v1/names/{name}": (Case(Rule.CHANGE, TRAINER, NAME),),
    # policies and receipts
    "GET /v1/policies": (KEYED,),
    "POST /v1/policies": (Case(Rule.KEYED, TRAINER, body=new_policy),),
    "POST /v1/policies:check": (Case(Rule.KEYED, body=lambda _: {"json": {"source": STRICT}}),),
    "GET /v1/policies/{name}": (Case(Rule.SEE, kind=POLICY),),
    "GET /v1/policy_assignments": (KEYED,),
    "PUT /v1/policy_assignments/{scope}": (
        Case(Rule.SEE, TRAINER, POLICY, govern_by, {"scope": "alias:put-governed"}),
    ),
    "DELETE /v1/policy_assignments/{scope}": (Case(Rule.OWN, ADMIN, ASSIGNMENT),),
    "GET /v1/policy_assignments/{scope}/history": (Case(Rule.KEYED, path={"scope": "tenant"}),),
    "GET /v1/receipts": (KEYED,),
    "POST /v1/receipts": (Case(Rule.SEE, TRAINER, ADAPTER, judge_by, passes=202),),
    "GET /v1/receipts/schema": (KEYED,),
    "GET /v1/receipts/{receipt_id}": (Case(Rule.SEE, kind=RECEIPT),),
    # keys and usage
    "GET /v1/keys": (Case(Rule.KEYED, ADMIN),),
    "POST /v1/keys": (Case(Rule.KEYED, ADMIN, body=new_key, passes=201),),
    "PATCH /v1/keys/{key_id}": (Case(Rule.OWN, ADMIN, KEY, new_limits),),
    "POST /v1/keys/{key_id}/rotate": (Case(Rule.OWN, ADMIN, KEY, no_overlap),),
    "DELETE /v1/keys/{key_id}": (Case(Rule.OWN, ADMIN, KEY),),
    "GET /v1/usage/costs": (KEYED,),
    "GET /v1/usage": (KEYED,),  # of which keys: tests/api/routes/tenants/test_usage.py
    # webhooks
    "GET /v1/webhook_endpoints": (Case(Rule.KEYED, ADMIN),),
    "POST /v1/webhook_endpoints": (Case(Rule.KEYED, ADMIN, body=new_webhook),),
    "GET /v1/webhook_endpoints/{webhook_endpoint_id}": (Case(Rule.OWN, ADMIN, WEBHOOK),),
    "POST /v1/webhook_endpoints/{webhook_endpoint_id}": (
        Case(Rule.OWN, ADMIN, WEBHOOK, lambda _: {"json": {"name": "other"}}),
    ),
    "DELETE /v1/webhook_endpoints/{webhook_endpoint_id}": (Case(Rule.OWN, ADMIN, WEBHOOK),),
    "POST /v1/webhook_endpoints/{webhook_endpoint_id}/rotate_secret": (Case(Rule.OWN, ADMIN, WEBHOOK),),
    "POST /v1/webhook_endpoints/{webhook_endpoint_id}/test": (Case(Rule.OWN, ADMIN, WEBHOOK, try_webhook),),
    "GET /v1/webhook_endpoints/{webhook_endpoint_id}/deliveries": (Case(Rule.OWN, ADMIN, WEBHOOK),),
    # requests to models
    "POST /v1/chat/completions": CHAT,
    "POST /v1/completions": PROMPT,
    "POST /v1/responses": RESPOND,
    "POST /v1/embeddings": RESPOND,
    "POST /v1/tokenize": TOKENS,
    "POST /v1/detokenize": TOKENS,
    "POST /api/chat": CHAT,
    "POST /api/generate": GENERATE,
    "GET /api/tags": (KEYED,),
    "GET /api/version": (KEYED,),
}
