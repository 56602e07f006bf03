"""A worker that judges adapters for an alias under a policy, with a stub instead of the API and the replica."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message
from pathlib import Path
from typing import Any

from shared.artifacts.folder_storage import FolderStorage
from shared.database.connection import Database
from shared.database.evaluation.evals import Evals
from shared.database.files.files import Files
from shared.database.files.uploads import Uploads
from shared.database.gates.policies import PolicyName
from shared.database.gates.receipts import Receipts, StoredReceipt
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.names.aliases import Actor, Aliases
from shared.database.records import Job, Kind
from shared.database.routing import Routing
from shared.model_card.general_questions import all_general_questions
from tests.support.builders import claimed, new_adapter, submission
from tests.support.doubles import FakeJobQueue
from tests.support.gate_rows import govern
from tests.support.http_stub import http_stub
from worker.jobs.runner import Worker
from worker.settings import WorkerSettings

OLD, GOOD, BAD = "demo@1", "demo@2", "demo@3"
ALICE = Actor(id="key-1", name="alice")
ROWS = 60
EQUALS = {
    "type": "string_check",
    "name": "equals",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}",
    "operation": "eq",
}
CONFIG = {"type": "custom", "item_schema": {"type": "object"}}
SERVED = {
    "base": "tiny",
    "served_digest": "b" * 64,
    "max_lora_rank": 64,
}


@dataclass
class Models:
    """Stub of an API and a replica; each model answers a given share of the questions correctly.

    Attributes:
        right: share of questions that a model answers correctly, by model; models without an entry are unknown.
        general: the same for general questions, if it differs.
        asked: bodies, as they came.
    """

    right: dict[str, float]
    general: dict[str, float] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)

    def respond(self, _method: str, target: str, content: bytes, _headers: Message) -> tuple[int, object]:
        if target == "/mens/limits":
            return 200, SERVED
        body = json.loads(content)
        self.asked.append(body)
        question = body["messages"][-1]["content"]
        if body["model"] not in self.right:
            error = {"message": "This model does not exist.", "mens": {"code": "MODEL_NOT_FOUND", "remedy": ""}}
            return 404, {"error": error}
        general = [one.question for one in all_general_questions()]
        share, right = self.right[body["model"]], question
        number, count = (int(question), ROWS) if question.isdigit() else (general.index(question), len(general))
        if not question.isdigit():
            share = self.general.get(body["model"], share)
            right = " ".join(group[0] for group in all_general_questions()[number].right)
        knows = number < count * share
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        message = {"content": right if knows else "I do not know"}
        return 200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


@dataclass
class JudgedInstallation:
    """A worker, an alias under a policy, and three adapters."""

    database: Database
    worker: Worker
    policy: PolicyName
    aliases: Aliases
    file_id: str

    def judge(self, adapter: str, cycles: str = "") -> Job:
        """Let the worker judge an adapter for the alias, with the lines of a file of cycles."""
        plan = {"adapter_id": adapter, "adapter_digest": "d" * 64, "alias": "prod", "policy": self.policy.model_dump()}
        if cycles:
            with self.worker.storage.writer() as writer:
                writer.write(cycles.encode())
                uploaded = datetime.now(UTC).isoformat()
                plan["cycles"] = {"file_id": "file-1", "sha256": writer.commit(), "created_at": uploaded}
        job, _ = Jobs(self.database).submit(submission(kind=Kind.JUDGE, plan=plan))
        self.worker.run_job(job.id)
        return Jobs(self.database).get(job.id)

    def govern_by(self, criterion: dict[str, Any]) -> None:
        """Assign a policy whose eval has this criterion."""
        fields = {"data_source_config": CONFIG, "testing_criteria": [criterion]}
        judged = Evals(self.database).create("code", {}, fields)
        source = policy_of(judged.id, self.file_id)
        self.policy = govern(self.database, "alias:prod", source, name="code").policy

    def receipt(self, job: Job) -> StoredReceipt:
        return Receipts(self.database).get(job.result["receipt"]["id"])


def policy_of(eval_id: str, file_id: str) -> str:
    return f"""\
version: "1"
runs:
  support: {{eval: {eval_id}, file: {file_id}, messages: [{{role: user, content: "{{{{ item.question }}}}"}}], seed: 11}}
gates:
  truncation: {{}}
  throughput: {{min_tokens_per_sec: {{cpu: 1000}}}}
  collateral_damage: {{run: support, max_degradation: 0.2}}
  evals:
    quality: {{run: support, criterion: equals, max_loss: 0.1}}
"""


@contextmanager
def judged_installation(models: Models, database: Database, home: Path) -> Iterator[JudgedInstallation]:
    """The alias prod points to OLD; a policy on the share of correct answers governs it."""
    with http_stub(models.respond) as url:
        settings = WorkerSettings(home=home, heartbeat_seconds=0.5, api_url=url, serving_urls=[url])
        leases, storage = Leases(database, settings.lease_seconds), FolderStorage(settings.storage_dir)
        files = Files(database)
        worker = Worker(settings, leases, files, Uploads(database), storage, FakeJobQueue(), name="first")
        lease = claimed(Jobs(database), leases)
        supervision = {"tokens": 100, "supervised_tokens": 40, "truncation_fraction": 0.1}
        rows = {"rows": 4, "trainable_rows": 4, "lanes": {"vox_speech": 1, "vox_codegen": 3}, "categories": {}}
        leases.report(lease, preflight={"supervision": supervision, "data": {"training": rows}}, events=[])
        made = [new_adapter(name, final=False) for name in (OLD, GOOD, BAD)]
        leases.finish(lease, {"tokens_per_second": 50.0, "memory": {"device": "cpu"}}, adapters=made)
        aliases = Aliases(database)
        aliases.set("prod", Routing.to(OLD), ALICE)
        judged = Evals(database).create("e", {}, {"data_source_config": CONFIG, "testing_criteria": [EQUALS]})
        with storage.writer() as writer:
            items = [{"item": {"question": str(number), "answer": str(number)}} for number in range(ROWS)]
            writer.write(b"".join(json.dumps(row).encode() + b"\n" for row in items))
            sha256 = writer.commit()
        file = files.add("rows.jsonl", "evals", 1, sha256)
        policy = govern(database, "alias:prod", policy_of(judged.id, file.id)).policy
        yield JudgedInstallation(database, worker, policy, aliases, file.id)
