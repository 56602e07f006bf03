"""The one exception tree of Mens.

    MensError
    ├── InvalidRequest       the caller sent something wrong; sending it again cannot help
    │   ├── ContractRejected     a fine-tune contract that cannot be run
    │   ├── DatasetInvalid       a training file with errors, each with its line number
    │   └── TooLarge             over a stated size limit
    ├── Unauthenticated      no key, or a key that is not known
    ├── Forbidden            the key is known, but it may not do this
    ├── TooMany              a limit of the key, its tenant or the client's address is reached; try again
    ├── TooSlow              the request did not come in the time that it has; try again
    ├── NotFound             the named thing does not exist
    ├── Conflict             the thing exists, but its state forbids this
    │   └── LeaseLost            another attempt owns the job now; stop writing
    ├── ArtifactInvalid      an adapter or model folder that must not be trusted
    ├── Unavailable          a part of the system does not respond now; try again
    └── JobFailed            a job attempt failed

The class shows who can act, `code` the exact event (codes never change), `remedy` the action.
Errors have no HTTP status, because the worker has no HTTP; the table of statuses is in `api/errors.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """Every stable error code, documented in `docs/errors.md` (a test keeps the two equal)."""

    # requests
    REQUEST_INVALID = "REQUEST_INVALID"
    FIELD_UNKNOWN = "FIELD_UNKNOWN"
    FIELD_UNSUPPORTED = "FIELD_UNSUPPORTED"
    GRAMMAR_TOO_LARGE = "GRAMMAR_TOO_LARGE"
    GRAMMAR_TOO_DEEP = "GRAMMAR_TOO_DEEP"
    GRAMMAR_TOO_COSTLY = "GRAMMAR_TOO_COSTLY"
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"
    KEY_MISSING = "KEY_MISSING"
    KEY_INVALID = "KEY_INVALID"
    KEY_EXPIRED = "KEY_EXPIRED"
    KEY_EXPIRY_INVALID = "KEY_EXPIRY_INVALID"
    AUTHENTICATION_THROTTLED = "AUTHENTICATION_THROTTLED"
    SIGN_IN_ENDED = "SIGN_IN_ENDED"
    SIGN_IN_NOT_FOUND = "SIGN_IN_NOT_FOUND"
    SIGN_IN_CODE_INVALID = "SIGN_IN_CODE_INVALID"
    SIGN_IN_NEEDS_KEY = "SIGN_IN_NEEDS_KEY"
    SIGN_IN_CROSS_SITE = "SIGN_IN_CROSS_SITE"
    SIGN_IN_INSECURE = "SIGN_IN_INSECURE"
    KEY_NOT_FOUND = "KEY_NOT_FOUND"
    KEY_NAME_TAKEN = "KEY_NAME_TAKEN"
    KEY_REVOKED = "KEY_REVOKED"
    ROLE_INSUFFICIENT = "ROLE_INSUFFICIENT"
    TENANT_FORBIDDEN = "TENANT_FORBIDDEN"
    TENANT_NOT_FOUND = "TENANT_NOT_FOUND"
    AUDIT_EXPORT_DIFFERS = "AUDIT_EXPORT_DIFFERS"
    RATE_LIMITED = "RATE_LIMITED"
    CONCURRENCY_LIMITED = "CONCURRENCY_LIMITED"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    QUEUED_JOBS_LIMITED = "QUEUED_JOBS_LIMITED"
    GPU_MINUTES_EXHAUSTED = "GPU_MINUTES_EXHAUSTED"
    NAME_INVALID = "NAME_INVALID"
    NAME_NOT_FOUND = "NAME_NOT_FOUND"
    PERMISSION_NOT_FOUND = "PERMISSION_NOT_FOUND"
    ROUTE_NOT_FOUND = "ROUTE_NOT_FOUND"
    CONSOLE_FILE_NOT_FOUND = "CONSOLE_FILE_NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    HEAD_TOO_LARGE = "HEAD_TOO_LARGE"
    REQUEST_TIMEOUT = "REQUEST_TIMEOUT"
    CONNECTIONS_LIMITED = "CONNECTIONS_LIMITED"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    # files and data
    FILE_NOT_FOUND = "FILE_NOT_FOUND"
    FILE_TOO_LARGE = "FILE_TOO_LARGE"
    FILE_IN_USE = "FILE_IN_USE"
    UPLOAD_NOT_FOUND = "UPLOAD_NOT_FOUND"
    UPLOAD_STATE_CONFLICT = "UPLOAD_STATE_CONFLICT"
    UPLOAD_SIZE_MISMATCH = "UPLOAD_SIZE_MISMATCH"
    UPLOAD_DIGEST_MISMATCH = "UPLOAD_DIGEST_MISMATCH"
    BODY_TOO_LARGE = "BODY_TOO_LARGE"
    DATASET_LINE_INVALID = "DATASET_LINE_INVALID"
    ROWS_OF_OTHER_METHOD = "ROWS_OF_OTHER_METHOD"
    PREFERENCES_CONTRADICT = "PREFERENCES_CONTRADICT"
    KTO_ONE_LABEL = "KTO_ONE_LABEL"
    DATASET_EMPTY = "DATASET_EMPTY"
    # data and templates
    TOKENIZER_MISMATCH = "TOKENIZER_MISMATCH"
    TEMPLATE_ARGUMENT_UNKNOWN = "TEMPLATE_ARGUMENT_UNKNOWN"
    TEMPLATE_ARGUMENT_INVALID = "TEMPLATE_ARGUMENT_INVALID"
    EMBEDDING_ROW_MISSING = "EMBEDDING_ROW_MISSING"
    # models, contracts
    MODEL_NOT_FOUND = "MODEL_NOT_FOUND"
    MODEL_IN_USE = "MODEL_IN_USE"
    MODEL_DUPLICATE = "MODEL_DUPLICATE"
    MODEL_NOT_DELETABLE = "MODEL_NOT_DELETABLE"
    MODEL_UNCERTIFIED = "MODEL_UNCERTIFIED"
    CONTRACT_INVALID = "CONTRACT_INVALID"
    CONTRACT_UNSUPPORTED = "CONTRACT_UNSUPPORTED"
    CATALOG_INVALID = "CATALOG_INVALID"
    SETTINGS_INVALID = "SETTINGS_INVALID"
    HUB_UNAVAILABLE = "HUB_UNAVAILABLE"
    HUB_ACCESS_DENIED = "HUB_ACCESS_DENIED"
    BASE_NOT_FETCHED = "BASE_NOT_FETCHED"
    # model preflight
    QLORA_REQUIRES_HF_TOKENIZER = "QLORA_REQUIRES_HF_TOKENIZER"
    TOKENIZER_NOT_FOUND = "TOKENIZER_NOT_FOUND"
    MODEL_WEIGHTS_NOT_FOUND = "MODEL_WEIGHTS_NOT_FOUND"
    MODEL_WEIGHTS_PICKLED = "MODEL_WEIGHTS_PICKLED"
    CONFIG_NOT_FOUND = "CONFIG_NOT_FOUND"
    MODEL_CONFIG_INVALID = "MODEL_CONFIG_INVALID"
    MODEL_FAMILY_UNSUPPORTED = "MODEL_FAMILY_UNSUPPORTED"
    LAYER_TYPES_INVALID = "LAYER_TYPES_INVALID"
    EMBEDDING_NOT_FOUND = "EMBEDDING_NOT_FOUND"
    EMBEDDING_NOT_2D = "EMBEDDING_NOT_2D"
    EMBEDDING_SHAPE_MISMATCH = "EMBEDDING_SHAPE_MISMATCH"
    LINEAR_ATTENTION_SHAPE = "LINEAR_ATTENTION_SHAPE"
    MIDDLE_COVERAGE_INCOMPLETE = "MIDDLE_COVERAGE_INCOMPLETE"
    BLOCK_INVENTORY_INCOMPLETE = "BLOCK_INVENTORY_INCOMPLETE"
    NOT_SERVABLE_FAMILY = "NOT_SERVABLE_FAMILY"
    NOT_SERVABLE_RANK = "NOT_SERVABLE_RANK"
    NOT_SERVABLE_HEAD = "NOT_SERVABLE_HEAD"
    NOT_SERVABLE_HEAD_SIZE = "NOT_SERVABLE_HEAD_SIZE"
    NOT_SERVABLE_BASE = "NOT_SERVABLE_BASE"
    # gates
    NF4_REQUIRES_QLORA = "NF4_REQUIRES_QLORA"
    BURN_HF_CONFIG_REQUIRED = "BURN_HF_CONFIG_REQUIRED"
    BURN_HF_GPT2_ONLY = "BURN_HF_GPT2_ONLY"
    MOBILE_EDGE_REJECTS_FULL_PROXY_STACK = "MOBILE_EDGE_REJECTS_FULL_PROXY_STACK"
    MOBILE_EDGE_SEQ_LEN = "MOBILE_EDGE_SEQ_LEN"
    MOBILE_EDGE_RANK = "MOBILE_EDGE_RANK"
    MOBILE_EDGE_BATCH_SIZE = "MOBILE_EDGE_BATCH_SIZE"
    MOBILE_EDGE_REQUIRES_CPU = "MOBILE_EDGE_REQUIRES_CPU"
    UNKNOWN_BACKEND = "UNKNOWN_BACKEND"
    KERNEL_MISMATCH = "KERNEL_MISMATCH"
    BURN_LORA_REJECTED = "BURN_LORA_REJECTED"
    GPU_UNUSABLE = "GPU_UNUSABLE"
    GPU_REQUIRED = "GPU_REQUIRED"
    PROXY_STACK_CONFLICT = "PROXY_STACK_CONFLICT"
    LM_HEAD_ONLY_FULL_STACK = "LM_HEAD_ONLY_FULL_STACK"
    LM_HEAD_ONLY_PROXY_LAYERS = "LM_HEAD_ONLY_PROXY_LAYERS"
    LM_HEAD_ONLY_UNSUPPORTED = "LM_HEAD_ONLY_UNSUPPORTED"
    PARTIAL_DEPTH_UNSUPPORTED = "PARTIAL_DEPTH_UNSUPPORTED"
    TARGET_MODULES_UNKNOWN = "TARGET_MODULES_UNKNOWN"
    SEQ_LEN_TOO_LARGE = "SEQ_LEN_TOO_LARGE"
    MEMORY_DOES_NOT_FIT = "MEMORY_DOES_NOT_FIT"
    CE_LAST_K_TOO_LARGE = "CE_LAST_K_TOO_LARGE"
    CORPUS_TOO_SMALL = "CORPUS_TOO_SMALL"
    CONTINUE_NOT_READY = "CONTINUE_NOT_READY"
    CONTINUE_BASE_MISMATCH = "CONTINUE_BASE_MISMATCH"
    CONTINUE_SHAPE_UNSUPPORTED = "CONTINUE_SHAPE_UNSUPPORTED"
    OPTIMIZER_EXPERIMENT_OFF = "OPTIMIZER_EXPERIMENT_OFF"
    UNKNOWN_PRESET = "UNKNOWN_PRESET"
    UNKNOWN_DOMAIN = "UNKNOWN_DOMAIN"
    # webhooks
    WEBHOOK_NOT_FOUND = "WEBHOOK_NOT_FOUND"
    WEBHOOK_URL_FORBIDDEN = "WEBHOOK_URL_FORBIDDEN"
    WEBHOOK_ENDPOINTS_LIMITED = "WEBHOOK_ENDPOINTS_LIMITED"
    WEBHOOK_STATE_CONFLICT = "WEBHOOK_STATE_CONFLICT"
    # jobs
    JOB_NOT_FOUND = "JOB_NOT_FOUND"
    JOB_STATE_CONFLICT = "JOB_STATE_CONFLICT"
    LEASE_LOST = "LEASE_LOST"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    ATTEMPTS_EXHAUSTED = "ATTEMPTS_EXHAUSTED"
    TRAINER_CRASHED = "TRAINER_CRASHED"
    TRAINER_KILLED = "TRAINER_KILLED"
    TRAINER_TERMINATED = "TRAINER_TERMINATED"
    PEER_LOST = "PEER_LOST"
    TRAINER_STALLED = "TRAINER_STALLED"
    TRAINER_IDLE = "TRAINER_IDLE"
    TRAINER_ORPHANED = "TRAINER_ORPHANED"
    WALL_CLOCK_CAP_EXCEEDED = "WALL_CLOCK_CAP_EXCEEDED"
    GPU_BUDGET_EXCEEDED = "GPU_BUDGET_EXCEEDED"
    TIME_LIMIT_EXCEEDED = "TIME_LIMIT_EXCEEDED"
    LOSS_NOT_FINITE = "LOSS_NOT_FINITE"
    NOTHING_SUPERVISED = "NOTHING_SUPERVISED"
    SKIP_RATE_EXCEEDED = "SKIP_RATE_EXCEEDED"
    TEMPLATE_UNSUPPORTED = "TEMPLATE_UNSUPPORTED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    CHECKPOINT_MISMATCH = "CHECKPOINT_MISMATCH"
    CHECKPOINT_MISSING = "CHECKPOINT_MISSING"
    REFERENCE_MISMATCH = "REFERENCE_MISMATCH"
    PROCESSES_DIFFER = "PROCESSES_DIFFER"
    # adapters
    ADAPTER_NOT_FOUND = "ADAPTER_NOT_FOUND"
    ADAPTER_STILL_STORED = "ADAPTER_STILL_STORED"
    ADAPTER_NO_EFFECT = "ADAPTER_NO_EFFECT"
    ADAPTER_TEMPLATE_MISMATCH = "ADAPTER_TEMPLATE_MISMATCH"
    ADAPTER_STOP_MISMATCH = "ADAPTER_STOP_MISMATCH"
    TOOL_CALLS_BROKEN = "TOOL_CALLS_BROKEN"
    ADAPTER_PARITY_FAILED = "ADAPTER_PARITY_FAILED"
    ADAPTER_PRECISION_MISMATCH = "ADAPTER_PRECISION_MISMATCH"
    ADAPTER_NOT_SERVABLE = "ADAPTER_NOT_SERVABLE"
    ADAPTER_MANIFEST_INVALID = "ADAPTER_MANIFEST_INVALID"
    ADAPTER_DIGEST_MISMATCH = "ADAPTER_DIGEST_MISMATCH"
    ADAPTER_BASE_MISMATCH = "ADAPTER_BASE_MISMATCH"
    ADAPTER_SHAPE_MISMATCH = "ADAPTER_SHAPE_MISMATCH"
    ADAPTER_DTYPE_UNSUPPORTED = "ADAPTER_DTYPE_UNSUPPORTED"
    ADAPTER_VALUES_INVALID = "ADAPTER_VALUES_INVALID"
    ADAPTER_RANK_TOO_LARGE = "ADAPTER_RANK_TOO_LARGE"
    SAFETENSORS_INVALID = "SAFETENSORS_INVALID"
    BASE_FILE_UNKNOWN = "BASE_FILE_UNKNOWN"
    GGUF_INVALID = "GGUF_INVALID"
    GGUF_UNSUPPORTED = "GGUF_UNSUPPORTED"
    BASE_DIGEST_MISMATCH = "BASE_DIGEST_MISMATCH"
    # aliases
    ALIAS_NOT_FOUND = "ALIAS_NOT_FOUND"
    ALIAS_BASES_DIFFER = "ALIAS_BASES_DIFFER"
    ALIAS_VERSION_CONFLICT = "ALIAS_VERSION_CONFLICT"
    ALIAS_VERSION_NOT_FOUND = "ALIAS_VERSION_NOT_FOUND"
    # policies and receipts
    POLICY_INVALID = "POLICY_INVALID"
    POLICY_NOT_FOUND = "POLICY_NOT_FOUND"
    RECEIPT_NOT_FOUND = "RECEIPT_NOT_FOUND"
    GATE_FAILED = "GATE_FAILED"
    GATE_MISSING = "GATE_MISSING"
    GATE_STALE = "GATE_STALE"
    # merge
    ADAPTER_UNSIGNED = "ADAPTER_UNSIGNED"
    ADAPTER_SIGNATURE_INVALID = "ADAPTER_SIGNATURE_INVALID"
    MODEL_UNSIGNED = "MODEL_UNSIGNED"
    MODEL_SIGNATURE_INVALID = "MODEL_SIGNATURE_INVALID"
    ADAPTER_IMPORT_FORMAT = "ADAPTER_IMPORT_FORMAT"
    ADAPTER_IMPORT_INCOMPLETE = "ADAPTER_IMPORT_INCOMPLETE"
    MERGE_REJECTS_BURN_BIN = "MERGE_REJECTS_BURN_BIN"
    MERGE_NO_BASE_SHARDS = "MERGE_NO_BASE_SHARDS"
    MERGE_BASE_SHARD_NOT_FOUND = "MERGE_BASE_SHARD_NOT_FOUND"
    MERGE_ADAPTER_NOT_FOUND = "MERGE_ADAPTER_NOT_FOUND"
    MERGE_META_NOT_FOUND = "MERGE_META_NOT_FOUND"
    MERGE_META_FORMAT = "MERGE_META_FORMAT"
    MERGE_MIXED_FAMILIES = "MERGE_MIXED_FAMILIES"
    MERGE_ADAPTER_TENSOR_MISSING = "MERGE_ADAPTER_TENSOR_MISSING"
    MERGE_BASE_KEY_NOT_FOUND = "MERGE_BASE_KEY_NOT_FOUND"
    MERGE_SHAPE = "MERGE_SHAPE"
    MERGE_BASE_DIGEST_MISMATCH = "MERGE_BASE_DIGEST_MISMATCH"
    MERGE_DTYPE = "MERGE_DTYPE"
    MERGE_NOT_FINITE = "MERGE_NOT_FINITE"
    MERGE_FIDELITY_FAILED = "MERGE_FIDELITY_FAILED"
    # export
    OLLAMA_TEMPLATE_UNSUPPORTED = "OLLAMA_TEMPLATE_UNSUPPORTED"
    OLLAMA_MODEL_UNSUPPORTED = "OLLAMA_MODEL_UNSUPPORTED"
    # parts of the system
    STORAGE_FULL = "STORAGE_FULL"
    STORAGE_OBJECT_MISSING = "STORAGE_OBJECT_MISSING"
    STORAGE_UNAVAILABLE = "STORAGE_UNAVAILABLE"
    STORAGE_DENIED = "STORAGE_DENIED"
    STORAGE_BUCKET_NOT_FOUND = "STORAGE_BUCKET_NOT_FOUND"
    STORAGE_PRECONDITION_FAILED = "STORAGE_PRECONDITION_FAILED"
    SERVING_UNAVAILABLE = "SERVING_UNAVAILABLE"
    BASE_NOT_SERVED = "BASE_NOT_SERVED"
    SERVING_REFUSED = "SERVING_REFUSED"
    SERVING_FAILED = "SERVING_FAILED"
    REQUEST_REJECTED = "REQUEST_REJECTED"
    CONTEXT_LENGTH_EXCEEDED = "CONTEXT_LENGTH_EXCEEDED"
    TASK_UNSUPPORTED = "TASK_UNSUPPORTED"
    RESPONSE_NOT_STORED = "RESPONSE_NOT_STORED"
    TOOL_UNSUPPORTED = "TOOL_UNSUPPORTED"
    ADAPTERS_DO_NOT_FIT = "ADAPTERS_DO_NOT_FIT"
    BASE_DOES_NOT_FIT = "BASE_DOES_NOT_FIT"
    DATABASE_UNAVAILABLE = "DATABASE_UNAVAILABLE"
    DATABASE_INVALID = "DATABASE_INVALID"
    # graders
    GRADER_INVALID = "GRADER_INVALID"
    GRADER_UNSUPPORTED = "GRADER_UNSUPPORTED"
    GRADER_VARIABLE_INVALID = "GRADER_VARIABLE_INVALID"
    GRADER_SAMPLE_INVALID = "GRADER_SAMPLE_INVALID"
    GRADER_FORMULA_INVALID = "GRADER_FORMULA_INVALID"
    GRADER_RESULT_INVALID = "GRADER_RESULT_INVALID"
    GRADER_TEXT_TOO_LONG = "GRADER_TEXT_TOO_LONG"
    GRADER_TIMEOUT = "GRADER_TIMEOUT"
    GRADER_SOURCE_INVALID = "GRADER_SOURCE_INVALID"
    GRADER_FAILED = "GRADER_FAILED"
    GRADER_MODEL_REFUSED = "GRADER_MODEL_REFUSED"
    GRADER_MODEL_ANSWER_INVALID = "GRADER_MODEL_ANSWER_INVALID"
    GRADER_MODEL_UNAVAILABLE = "GRADER_MODEL_UNAVAILABLE"
    SANDBOX_UNAVAILABLE = "SANDBOX_UNAVAILABLE"
    SANDBOX_FAILED = "SANDBOX_FAILED"
    # corpora
    CORPUS_SOURCE_MISSING = "CORPUS_SOURCE_MISSING"
    CORPUS_SOURCE_EMPTY = "CORPUS_SOURCE_EMPTY"
    CORPUS_SHARD_CHANGED = "CORPUS_SHARD_CHANGED"
    CORPUS_RULE_UNKNOWN = "CORPUS_RULE_UNKNOWN"
    CORPUS_ROW_NOT_FOUND = "CORPUS_ROW_NOT_FOUND"
    CORPUS_SOURCE_UNKNOWN = "CORPUS_SOURCE_UNKNOWN"
    CORPUS_SOURCE_UNREACHABLE = "CORPUS_SOURCE_UNREACHABLE"
    CORPUS_QUERY_INVALID = "CORPUS_QUERY_INVALID"
    CORPUS_KEY_NOT_UNIQUE = "CORPUS_KEY_NOT_UNIQUE"
    CORPUS_WATERMARK_NULL = "CORPUS_WATERMARK_NULL"
    CORPUS_COLUMN_UNSUPPORTED = "CORPUS_COLUMN_UNSUPPORTED"
    CORPUS_STATE_MISMATCH = "CORPUS_STATE_MISMATCH"
    CORPUS_REDACTOR_UNKNOWN = "CORPUS_REDACTOR_UNKNOWN"
    CORPUS_REDACTOR_FAILED = "CORPUS_REDACTOR_FAILED"
    CORPUS_RECIPE_INVALID = "CORPUS_RECIPE_INVALID"
    CORPUS_OUTPUT_EMPTY = "CORPUS_OUTPUT_EMPTY"
    CORPUS_BUSY = "CORPUS_BUSY"
    # checkers of languages
    CHECKER_NOT_FOUND = "CHECKER_NOT_FOUND"
    CHECKER_FAILED = "CHECKER_FAILED"
    # scorecards
    SCORECARD_INVALID = "SCORECARD_INVALID"
    SCORECARD_MISMATCH = "SCORECARD_MISMATCH"
    # evaluations
    EVAL_NOT_FOUND = "EVAL_NOT_FOUND"
    EVAL_IN_USE = "EVAL_IN_USE"
    EVAL_INVALID = "EVAL_INVALID"
    EVAL_RUN_NOT_FOUND = "EVAL_RUN_NOT_FOUND"
    EVAL_ITEM_NOT_FOUND = "EVAL_ITEM_NOT_FOUND"
    EVAL_ITEMS_INVALID = "EVAL_ITEMS_INVALID"
    EVAL_TOO_MANY_ITEMS = "EVAL_TOO_MANY_ITEMS"
    EVAL_UNAVAILABLE = "EVAL_UNAVAILABLE"
    DATA_SOURCE_UNSUPPORTED = "DATA_SOURCE_UNSUPPORTED"
    # benchmark suites
    SUITES_NOT_INSTALLED = "SUITES_NOT_INSTALLED"
    SUITES_INSTALL_FAILED = "SUITES_INSTALL_FAILED"
    SUITE_FAILED = "SUITE_FAILED"
    SUITE_OUTPUT_INVALID = "SUITE_OUTPUT_INVALID"
    SUITE_ITEMS_DIFFER = "SUITE_ITEMS_DIFFER"
    # the command line
    API_UNAVAILABLE = "API_UNAVAILABLE"
    INSTALLATION_NOT_FOUND = "INSTALLATION_NOT_FOUND"
    ID_AMBIGUOUS = "ID_AMBIGUOUS"
    ALREADY_RUNNING = "ALREADY_RUNNING"
    PORT_IN_USE = "PORT_IN_USE"
    PROGRAM_FAILED = "PROGRAM_FAILED"
    PATH_INVALID = "PATH_INVALID"
    PACKAGE_UNAVAILABLE = "PACKAGE_UNAVAILABLE"
    # leaving another provider
    OPENAI_KEY_INVALID = "OPENAI_KEY_INVALID"
    OPENAI_UNAVAILABLE = "OPENAI_UNAVAILABLE"
    ARCHIVE_INVALID = "ARCHIVE_INVALID"
    ANSWER_LINE_INVALID = "ANSWER_LINE_INVALID"
    GATE_NOT_PASSED = "GATE_NOT_PASSED"
    ALIAS_TAKEN = "ALIAS_TAKEN"


class MensError(Exception):
    """Base of every error Mens raises on purpose.

    Args:
        code: the stable code.
        message: one sentence: what happened, with the value that was wrong.
        remedy: one sentence: what the reader can do about it.
        param: field path or file the error is about, e.g. ``exec.epochs``.
        details: JSON-able facts for machines, e.g. the capped list of bad lines.
        retryable: whether the same call can succeed later; the class's default when None.
    """

    default_retryable = False

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        remedy: str = "",
        param: str | None = None,
        details: Mapping[str, Any] | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(_encodable(message))
        # An unpickled error has the code as a string.
        self.code = Code(code)
        self.message = _encodable(message)
        self.remedy = _encodable(remedy)
        self.param = None if param is None else _encodable(param)
        self.details = dict(details or {})
        self.retryable = self.default_retryable if retryable is None else retryable

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" + (f" {self.remedy}" if self.remedy else "")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, the same in responses, in the database and in ``error.json`` of a run."""
        return {
            "code": str(self.code),
            "message": self.message,
            "remedy": self.remedy,
            "param": self.param,
            "details": self.details,
            "retryable": self.retryable,
        }


def _encodable(text: str) -> str:
    """Return a string that UTF-8 can encode: a foreign name in a message may have half of a surrogate pair."""
    return text.encode(errors="replace").decode()


# A module-level function, because pickle finds it by name; errors cross process borders.
def _rebuild(kind: type[MensError], fields: dict[str, Any]) -> MensError:
    return kind(fields.pop("code"), fields.pop("message"), **fields)


class InvalidRequest(MensError):
    """The caller sent something wrong; sending it again cannot help."""


class ContractRejected(InvalidRequest):
    """A fine-tune contract that cannot be run."""


class DatasetInvalid(InvalidRequest):
    """A training file with errors; ``details["errors"]`` is a capped list of {line, reason}."""


class TooLarge(InvalidRequest):
    """Over a stated size limit."""


class Unauthenticated(MensError):
    """No key, or a key that is not known."""


class Forbidden(MensError):
    """The key is known, but it may not do this."""


class TooMany(MensError):
    """A limit of the key, its tenant or the client's address is reached; ``details["retry_after_seconds"]`` says when
    to retry.
    """

    default_retryable = True


class TooSlow(MensError):
    """The request did not come in the time that it has."""

    default_retryable = True


class NotFound(MensError):
    """The named thing does not exist."""


class Conflict(MensError):
    """The thing exists, but its state forbids this."""


class LeaseLost(Conflict):
    """Another attempt owns the job now; the worker that gets this must stop and write nothing more."""


class ArtifactInvalid(MensError):
    """An adapter or model folder that must not be trusted."""


class Unavailable(MensError):
    """A part of the system does not respond now; the same call can succeed later."""

    default_retryable = True


class JobFailed(MensError):
    """A job attempt failed."""
