"""The keys of a recipe as tables, from its JSON Schema."""

from collections.abc import Iterator, Sequence
from typing import Any

from tables import listing

from dlcloud.recipe.recipe import recipe_schema

YES_NO = "`yes` or `no`"


def recipe() -> Iterator[str]:
    """Yield a table of keys for each part of a recipe, from its JSON Schema."""
    schema = recipe_schema()
    yield from _part("Top level", schema, schema)
    yield from _parts(schema, schema, path="")


def compact() -> Iterator[str]:
    """Yield a line for each part of a recipe: its keys with their values."""
    schema = recipe_schema()
    yield _line("top level", schema, schema)
    yield from _lines(schema, schema, path="")


def _lines(part: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    for key, value in part["properties"].items():
        for inner in _objects(value, schema):
            yield _line(f"`{path}{key}`", inner, schema)
            yield from _lines(inner, schema, f"{path}{key}.")


def _line(title: str, part: dict[str, Any], schema: dict[str, Any]) -> str:
    required = part.get("required", ())
    keys = [
        f"`{key}` ({_type(value, schema)}{', required' if key in required else ''})"
        for key, value in part["properties"].items()
    ]
    return f"- {title}: {', '.join(keys)}"


def _parts(part: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    for key, value in part["properties"].items():
        for inner in _objects(value, schema):
            yield from _part(f"`{path}{key}`", inner, schema)
            yield from _parts(inner, schema, f"{path}{key}.")


def _objects(value: dict[str, Any], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the parts that a key's value may be, or may be a list of."""
    if "$ref" in value:
        value = schema["$defs"][value["$ref"].rpartition("/")[2]]
        if "properties" in value:
            yield value
        return
    items = [value["items"]] if "items" in value else []
    for alternative in [*value.get("anyOf", ()), *value.get("oneOf", ()), *items]:
        yield from _objects(alternative, schema)


def _part(title: str, part: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    yield from [part["description"], ""] if "description" in part else []
    required = part.get("required", ())
    yield from listing(
        (
            key,
            "; ".join(filter(None, _values(key, value, schema, required))),
            value.get("description") or _link(key, value, schema),
        )
        for key, value in part["properties"].items()
        if not value.get("description", "").startswith(("Written by dlcloud", "The same as"))
    )


def _values(
    key: str, value: dict[str, Any], schema: dict[str, Any], required: Sequence[str]
) -> Iterator[str]:
    kind = _type(value, schema)
    yield "" if kind in {"text", "mapping", YES_NO} else kind
    default = _default(value)
    yield "required" if key in required else f"default {default}" if default else ""


def _type(value: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return the values that a key takes, for people: `text`, `number from 1 to 1000`, `list of text`."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        inner = schema["$defs"][name]
        return "mapping" if "properties" in inner else _type(inner, schema)
    alternatives = [*value.get("anyOf", ()), *value.get("oneOf", ())]
    if alternatives:
        kinds = [_type(alternative, schema) for alternative in alternatives]
        # A decimal number may be written as a number or as text of a certain pattern.
        kinds = [kind for kind in dict.fromkeys(kinds) if kind != "nothing"]
        if kinds == ["list of text", "text"]:
            return "text or list"
        return kinds[0] if kinds[0].startswith("number") and kinds[1:] == ["text"] else " or ".join(kinds)
    if "enum" in value or "const" in value:
        return ", ".join(f"`{word}`" for word in value.get("enum", [value.get("const")]))
    kind = value.get("type")
    if kind == "array":
        return f"list of {_plural(_type(value['items'], schema))}"
    if kind == "object":
        return "mapping"
    names = {"integer": "integer", "number": "number", "boolean": YES_NO, "null": "nothing"}
    words = f"{names.get(str(kind), 'text')} {_bounds(value)}".strip()
    return words.removeprefix("integer ") if "–" in words else words


def _plural(kind: str) -> str:
    return {"mapping": "mappings"}.get(kind, kind)


def _bounds(value: dict[str, Any]) -> str:
    lower = value.get("minimum", value.get("exclusiveMinimum"))
    upper = value.get("maximum")
    if lower is None:
        return ""
    if "exclusiveMinimum" in value:
        return f"above {lower:g}" + (f" to {upper:g}" if upper is not None else "")
    return f"{lower:g}–{upper:g}" if upper is not None else f"from {lower:g}"


def _default(value: dict[str, Any]) -> str:
    default = value.get("default")
    if default in (None, "", [], {}) or isinstance(default, dict):
        return ""
    return f"`{'yes' if default else 'no'}`" if isinstance(default, bool) else f"`{default}`"


def _link(key: str, value: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return a link to the section of a part, or what the type of a key says of it."""
    if "$ref" not in value:
        return ""
    inner = schema["$defs"][value["$ref"].rpartition("/")[2]]
    return f"[keys](#{key})" if "properties" in inner else str(inner.get("description", ""))
