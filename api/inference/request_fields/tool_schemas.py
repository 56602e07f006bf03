"""Finds the fault in a tool's JSON schema, so that a refusal names its place: for a forced call vLLM only reports that
its tag is invalid. Pure.

It looks only after vLLM has refused the request.
"""

from __future__ import annotations

from typing import Any

from shared.datasets.forms.schemas import SchemaFault, schema_faults


def tool_schema_fault(body: dict[str, Any]) -> SchemaFault | None:
    """Return the first fault in the parameters of the tools that a request lets the model call, if one is known."""
    field = "tools" if isinstance(body.get("tools"), list) else "functions"
    choice = body.get("tool_choice" if field == "tools" else "function_call")
    named = choice.get("function", choice) if isinstance(choice, dict) else {}
    name = named.get("name") if isinstance(named, dict) else None
    tools = body.get(field)
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        path = f"{field}[{index}]"
        function = tool
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
            path, function = f"{path}.function", tool["function"]
        if not isinstance(function, dict) or name not in (None, function.get("name")):
            continue
        if function.get("parameters") is not None:
            faults = schema_faults(function["parameters"], f"{path}.parameters")
            if fault := next(faults, None):
                return fault._replace(reason=f"{fault.reason} (tool {function.get('name')!r})")
    return None
