"""Specification of a scorecard: tasks, under conditions. Start reading here.

The original's file, field by field (`schema_version` 1); fields that Mens adds have defaults, so that the original's
files can be read.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from shared.errors import Code, InvalidRequest
from shared.hashing import digest_json

MAX_TASKS = 2_000
ConditionId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{1,63}$")]
TaskId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$")]
Text = Annotated[str, StringConstraints(max_length=100_000)]
"""A string with a constraint: without a constraint, pydantic accepts lone surrogates, which an answer file cannot
contain.
"""
Backend = Literal["base", "qlora", "burn", "other"]
Expected = list[Annotated[str, StringConstraints(min_length=1)]]


class ScorecardValue(BaseModel):
    """Frozen and closed: the base of everything in a scorecard's files."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ScorecardCondition(ScorecardValue):
    """A model, and where its answers come from."""

    id: ConditionId
    label: Text
    mode: Literal["http_generate", "fixture_file"] = Field(
        description=(
            "`http_generate`: it is sampled at `server_url`. `fixture_file`: its answers are files in `fixture_dir`."
        )
    )
    backend: Backend = Field("other", description="Backend that trained it; `base` for an untrained model.")
    model_id: Text | None = Field(None, description="Its name in requests; required for `http_generate`.")
    adapter_revision: Text | None = Field(None, description="The adapter's id with its digest.")
    server_url: Text | None = Field(None, description="Address of the API, as in http://127.0.0.1:8000.")
    fixture_dir: Text | None = Field(
        None, description="Folder with TASK.txt, TASK.2.txt for a second attempt, …; relative to the file of the spec."
    )
    training_seed: int | None = Field(
        None, ge=0, description="The seed that it was trained with; it distinguishes promotion cycles."
    )

    @model_validator(mode="after")
    def _source_is_given(self) -> ScorecardCondition:
        needed = ("server_url", "model_id") if self.mode == "http_generate" else ("fixture_dir",)
        if missing := [name for name in needed if not getattr(self, name)]:
            raise ValueError(f"a condition of the mode {self.mode} needs {' and '.join(missing)}")
        return self


class ScorecardTask(ScorecardValue):
    """A prompt, and what its answer has to contain."""

    id: TaskId
    prompt: Annotated[str, StringConstraints(min_length=1, max_length=100_000)]
    expected_contains: Expected = []
    semantic_expected_contains: Expected = []


class SamplingSettings(ScorecardValue):
    """Sampling settings of the models."""

    temperature: float = Field(0, ge=0, le=2)
    seed: int = Field(1337, ge=0, le=2**31 - 1)
    max_tokens: int = Field(2048, ge=1)


class ScorecardSpec(ScorecardValue):
    """Everything that a scorecard is made from."""

    schema_version: Literal[1]
    prompt_pack_version: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    max_retries: int = Field(ge=0, le=8, description="How often a model may repair an answer that does not compile.")
    conditions: Annotated[list[ScorecardCondition], Field(min_length=1, max_length=64)]
    tasks: Annotated[list[ScorecardTask], Field(min_length=1, max_length=MAX_TASKS)]
    validator: Text = Field("python", description="The language checker that says whether an answer compiles.")
    system_prompt: Text | None = None
    sampling: SamplingSettings = SamplingSettings()

    @model_validator(mode="after")
    def _ids_are_unique(self) -> ScorecardSpec:
        for kind, entries in (("conditions", self.conditions), ("tasks", self.tasks)):
            twice = [name for name, count in Counter(entry.id for entry in entries).items() if count > 1]
            if twice:
                raise ValueError(f"{kind} has the id {twice[0]!r} twice")
        return self

    def condition(self, condition_id: str) -> ScorecardCondition | None:
        """Return the condition with this id, or None."""
        return next((condition for condition in self.conditions if condition.id == condition_id), None)

    def items_digest(self) -> str:
        """Return the digest of prompts and expected results: tasks with other ids, or in another order, are the same
        items.
        """
        items = {digest_json(task.model_dump(exclude={"id"})) for task in self.tasks}
        return digest_json(sorted(items))


def read_spec(path: Path) -> ScorecardSpec:
    """Read the spec of a JSON file.

    Raises:
        InvalidRequest: ``SCORECARD_INVALID``, with the field and its fault.
    """
    try:
        return ScorecardSpec.model_validate(json.loads(path.read_bytes()))
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidRequest(Code.SCORECARD_INVALID, f"{path} cannot be read: {reason}.") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise _invalid(path, f"{field}: {first['msg']}", field) from None
    except (ValueError, RecursionError) as error:
        raise _invalid(path, f"it is not JSON: {error}", None) from None


def _invalid(path: Path, reason: str, field: str | None) -> InvalidRequest:
    remedy = "`mens scorecard schema spec` prints the schema; examples/scorecard has two examples."
    details: dict[str, Any] = {"file": str(path)}
    return InvalidRequest(
        Code.SCORECARD_INVALID, f"{path}: {reason}.", remedy=remedy, param=field or None, details=details
    )
