"""Write JSON schemas in few words, and check values against them."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
ANYTHING: Schema = {}

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}


def record(properties: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """Return the schema of an object with these properties and no others.

    Arguments:
        properties: the schemas of properties that the object must have, by name.
        optional: the schemas of properties that it may have.
    """
    return {
        "type": "object",
        "properties": {**properties, **(optional or {})},
        "required": list(properties),
        "additionalProperties": False,
    }


def mapping(values: Schema) -> Schema:
    """Return the schema of an object whose values have a schema, under any names."""
    return {"type": "object", "additionalProperties": values}


def array(items: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def nullable(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def described(schema: Schema, text: str) -> Schema:
    """Return a schema with a description."""
    return {**schema, "description": text}


def ref(name: str) -> Schema:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def fault(schema: Schema, value: Any, where: str) -> str | None:
    """Return what is wrong with a value of a request; None if it has the schema.

    Only what schemas of requests use is checked: types, limits, enumerations and properties.

    Arguments:
        schema: the schema, without references.
        value: the value, as JSON.
        where: the name of the value, for the text.
    """
    kind = schema.get("type")
    if kind is not None:
        fits = isinstance(value, _TYPES[kind])
        if not fits or (isinstance(value, bool) and kind != "boolean"):
            return f"{where} must be of type {kind}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} must be one of {', '.join(map(str, schema['enum']))}"
    if "minimum" in schema and value < schema["minimum"]:
        return f"{where} must be at least {schema['minimum']}"
    if "maximum" in schema and value > schema["maximum"]:
        return f"{where} must be at most {schema['maximum']}"
    if kind == "array":
        faults = (fault(schema["items"], item, f"an item of {where}") for item in value)
        return next(filter(None, faults), None)
    if kind == "object":
        return _fault_of_object(schema, value, where)
    return None


def _fault_of_object(schema: Schema, value: dict[str, Any], where: str) -> str | None:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{where} has no {name!r}"
    for name, item in value.items():
        if name not in properties:
            return f"{where} has no property {name!r}; it may have {', '.join(properties)}"
        found = fault(properties[name], item, f"{where}.{name}")
        if found is not None:
            return found
    return None
