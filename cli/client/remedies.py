"""Remedies of API errors as commands: the command-line counterpart of a route or a header that the API names.

A remedy is found by the error's code, and by code and field if one code has several remedies. An error that is not
listed here keeps the API's own remedy, in which routes become the commands that do the same.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from pathlib import Path
from typing import Any

from shared.errors import Code

LIST_MODELS = "List available models with `mens models`."
LEAVE_TENANT_OUT = "Unset MENS_TENANT and leave --tenant out"
SEE_HELP = "See the command's --help for valid values"

SUGGESTION = re.compile(r"Did you mean [^?]+\? ")

REMEDIES: dict[Code | tuple[Code, str], str] = {
    Code.KEY_MISSING: "Set MENS_API_KEY; an admin creates a key with `mens keys create NAME`.",
    Code.KEY_INVALID: "Set MENS_API_KEY to a key that an admin created with `mens keys create NAME`.",
    Code.KEY_EXPIRED: "Set MENS_API_KEY to the key's new secret, or ask an admin: `mens keys change KEY --expires 90d`.",
    Code.SIGN_IN_CROSS_SITE: "Set MENS_API_KEY to a key: commands do not sign in.",
    Code.SIGN_IN_NEEDS_KEY: "Set MENS_API_KEY to a key: commands do not sign in.",
    Code.SIGN_IN_NOT_FOUND: "It has ended; sign in again with `mens open`.",
    Code.WEBHOOK_ENDPOINTS_LIMITED: "Delete an endpoint you no longer need: `mens webhooks delete ID`.",
    Code.WEBHOOK_STATE_CONFLICT: "See `mens webhooks deliveries ID`; enable a disabled endpoint with `mens webhooks update ID --enable`.",
    Code.WEBHOOK_NOT_FOUND: "List them: `mens webhooks list`.",
    Code.KEY_NOT_FOUND: "List them: `mens keys list`.",
    Code.KEY_REVOKED: "Create a new one: `mens keys create NAME`.",
    Code.TENANT_NOT_FOUND: "Check MENS_TENANT and --tenant; a tenant is created with its first key: "
    "`mens keys create NAME --tenant TENANT`.",
    (Code.TENANT_FORBIDDEN, "X-Mens-Tenant"): f"{LEAVE_TENANT_OUT}, or use a key of that tenant.",
    (Code.TENANT_FORBIDDEN, "tenant"): f"{LEAVE_TENANT_OUT}.",
    (Code.TENANT_NOT_FOUND, "tenant"): "List them: `mens tenants list`.",
    (Code.ROLE_INSUFFICIENT, "key_id"): "Leave --key out to see your own key's usage.",
    (
        Code.ROLE_INSUFFICIENT,
        "priority",
    ): "Leave --priority out, or ask an operator to raise it: `mens jobs priority JOB N`.",
    Code.FILE_NOT_FOUND: "List them: `mens files list`; `mens train FILE` uploads one.",
    Code.CONCURRENCY_LIMITED: "Wait until one of the requests ends, or end one.",
    Code.QUOTA_EXCEEDED: "Delete files you no longer need, or ask the operator to raise the tenant's quota.",
    Code.JOB_NOT_FOUND: "List them: `mens jobs list`.",
    (Code.MODEL_NOT_FOUND, "model"): LIST_MODELS,
    (
        Code.MODEL_NOT_DELETABLE,
        "model",
    ): "Delete an alias with `mens aliases delete NAME`, another provider's name with `mens names remove "
    "NAME`, and an adapter by its own id. "
    "Remove a base on the machine that has the catalogue: `mens base remove NAME`.",
    (Code.ADAPTER_NOT_FOUND, "model"): LIST_MODELS,
    (Code.ADAPTER_NOT_FOUND, "adapter"): LIST_MODELS,
    (
        Code.ADAPTER_NOT_FOUND,
        "targets",
    ): "List adapters with `mens models`; an alias points to adapters, not to other "
    "aliases. To roll back past a deleted adapter, use --to-version.",
    (Code.MODEL_NOT_FOUND, "base"): LIST_MODELS,
    Code.NAME_NOT_FOUND: "List them: `mens names list`.",
    Code.ALIAS_NOT_FOUND: "List them: `mens aliases list`.",
    Code.POLICY_NOT_FOUND: "List them: `mens policies list`.",
    Code.RECEIPT_NOT_FOUND: "List them: `mens receipts list`.",
    Code.GATE_MISSING: "Evaluate it: `mens receipts create {adapter} --alias {alias}`; then move the alias again.",
    Code.GATE_STALE: "Evaluate it again: `mens receipts create {adapter} --alias {alias}`; then move the alias again.",
    Code.GATE_FAILED: "`mens receipts show {receipt}` shows every gate; an admin may override with --override and --reason.",
    Code.ALIAS_VERSION_NOT_FOUND: "List its versions with `mens aliases history NAME`.",
}

COMMANDS = {
    r"GET /v1/models\b": "`mens models`",
    r"POST /v1/jobs/(\w[\w-]*)/cancel": r"`mens jobs cancel \1`",
    r"PUT /v1/policy_assignments/(\w+)": r"`mens policies assign \1 POLICY`",
    r"GET /v1/fine_tuning/checkpoints/MODEL/permissions": "`mens permissions list ADAPTER`",
    r"DELETE /v1/fine_tuning/checkpoints/MODEL/permissions/ID": "`mens permissions delete ADAPTER TENANT`",
    r"GET /v1/evals[^\s,;]*?(?=[.,;]?(\s|$))": "`mens eval list`",
}
"""Routes in the API's own remedies, and the commands that replace them."""


def our_code(error: dict[str, Any]) -> Any:
    """Return the code of an API error in our vocabulary, or the only code that an earlier release sends; None without a
    code.
    """
    return error.get("mens", {}).get("code", error.get("code"))


def to_cli_remedy(error: dict[str, Any]) -> str:
    """Return the remedy for an API error, for a user of the command line.

    Args:
        error: the value of ``error`` in the response.
    """
    code, field, mens = our_code(error), error.get("param") or "", error.get("mens", {})
    # Only invalid fields of a body or a query list faults under these two codes; the API then refers to its OpenAPI document.
    if code in (Code.REQUEST_INVALID, Code.NAME_INVALID) and "errors" in mens.get("details", {}):
        is_contract = field.partition(".")[0] == "contract"
        suggestion = SUGGESTION.match(str(mens.get("remedy", "")))
        see = SEE_HELP + ("; the contract's schema is at GET /v1/contract/schema." if is_contract else ".")
        return suggestion[0] + see if suggestion else see
    own_remedy = REMEDIES.get((code, field)) or REMEDIES.get(code)
    if own_remedy and code in (Code.GATE_MISSING, Code.GATE_STALE, Code.GATE_FAILED):
        return own_remedy.format_map(defaultdict(lambda: "…", mens.get("details", {})))
    return own_remedy or _with_commands(str(mens.get("remedy", "")))


def with_file(text: str, path: Path) -> str:
    """Return a remedy with the path of the file that it is about in place of ``FILE``."""
    return re.sub(r"\bFILE\b", lambda _: shlex.quote(str(path)), text)


def _with_commands(remedy: str) -> str:
    for route, command in COMMANDS.items():
        remedy = re.sub(route, command, remedy)
    return remedy
