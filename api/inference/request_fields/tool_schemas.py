"""JSON schemas of a request's tools: nulls in them, and the fault that a refusal names. Pure.

For a forced call vLLM only reports that its tag is invalid, so the fault is looked for after vLLM has refused the request.
"""

from __future__ import annotations

from typing import Any

from shared.datasets.forms.schemas import SchemaFault, schema_faults, without_nulls


def with_schemas_without_nulls(body: dict[str, Any]) -> dict[str, Any]:
    """Return a chat or response request with the nulls removed from its tools' schemas, as in training rows; the body
    itself if the schemas have no nulls.
    """
    tools = body.get("tools")
    if not isinstance(tools, list):
        return body
    try:
        cleaned = [_without_nulls(tool) for tool in tools]
    except (
        RecursionError
    ):  # such a schema is refused, with its depth, if a call is forced; otherwise the model only reads it
        return body
    return body if all(new is old for new, old in zip(cleaned, tools, strict=True)) else body | {"tools": cleaned}


def _without_nulls(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    if isinstance(function, dict):
        cleaned = _without_nulls(function)
        return tool if cleaned is function else tool | {"function": cleaned}
    parameters = tool.get("parameters") if isinstance(tool, dict) else None
    if not isinstance(parameters, dict) or (schema := without_nulls(parameters)) == parameters:
        return tool
    return tool | {"parameters": schema}


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
