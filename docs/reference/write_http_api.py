"""Write the page of the HTTP API from its OpenAPI document.

Run `python docs/reference/write_http_api.py` after a change of an endpoint. A test compares the
page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.rest.openapi import PREFIX, document
from penstock.rest.routes import ENDPOINTS

PAGE = Path(__file__).with_name("http-api.md")

#: Before this heading, the page is written by hand.
HEADING = "## Endpoints\n"


def page() -> str:
    """Return the page."""
    described = document()
    new = {(PREFIX + one.path, one.method.lower()) for one in ENDPOINTS if not one.flink}
    introduction = PAGE.read_text(encoding="utf-8").partition(HEADING)[0]
    lines = [introduction + HEADING, "| request | | answer |", "|---|---|---|"]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            own = (path, method) in new or not any(PREFIX + one.path == path for one in ENDPOINTS)
            mark = " (not in Flink)" if own else ""
            summary = operation["summary"].removesuffix(".") + mark
            lines.append(f"| `{method.upper()} {path}` | {summary} | {_answer(operation)} |")
    lines += ["", "## Parameters", ""]
    lines += ["| request | parameter | |", "|---|---|---|"]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            for name, text in _parameters(operation):
                lines.append(f"| `{method.upper()} {path}` | `{name}` | {text} |")
    lines += ["", "## Answers", ""]
    for name, schema in described["components"]["schemas"].items():
        lines += [f"### {name}", "", *_schema(schema), ""]
    return "\n".join(lines).rstrip() + "\n"


def _answer(operation: dict[str, Any]) -> str:
    for status, response in operation["responses"].items():
        if status.startswith("2") and "content" in response:
            ((media_type, content),) = response["content"].items()
            return f"{status} {_type(content['schema'])}" if "json" in media_type else media_type
    return ""


def _parameters(operation: dict[str, Any]) -> list[tuple[str, str]]:
    found = [
        (one["name"], f"{one['in']}, {_type(one['schema'])}: {one['description']}")
        for one in operation.get("parameters", [])
        if one["in"] != "path"
    ]
    body = operation.get("requestBody")
    if body is not None:
        ((media_type, content),) = body["content"].items()
        schema = content["schema"]
        if "properties" not in schema:
            found.append(("body", media_type))
        for name, one in schema.get("properties", {}).items():
            needed = ", required" if name in schema["required"] else ""
            text = f": {one['description']}" if "description" in one else ""
            found.append((name, f"body, {_type(one)}{needed}{text}"))
    return found


def _schema(schema: dict[str, Any]) -> list[str]:
    if schema.get("type") != "object" or "properties" not in schema:
        return [_type(schema)]
    lines = ["| property | type | |", "|---|---|---|"]
    for name, one in _flat(schema, ""):
        lines.append(f"| `{name}` | {_type(one)} | {one.get('description', '')} |")
    return lines


def _flat(schema: dict[str, Any], prefix: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the properties of an object, with those of objects in it, by their paths."""
    found = []
    for name, one in schema["properties"].items():
        path = f"{prefix}{name}"
        inner, end = one, "."
        if one.get("type") == "array":
            inner, end = one["items"], "[]."
        if inner.get("type") == "object" and "properties" in inner:
            found += _flat(inner, path + end)
        else:
            found.append((path, one))
    return found


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "any value")
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map to {_type(schema['additionalProperties'])}"
    if kind == "object" and schema.get("properties"):
        names = ", ".join(f"`{name}`" for name in schema["properties"])
        return f"object of {names}"
    return str(kind)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
