"""YAML read into a model, with every fault at its line.

Every scalar stays the text that was written, so that `3.10` is never 3.1 and `no` never False; the declared
type of a field converts it later. An empty value is an absent one, except in a mapping whose keys are free:
a variable without a value is a fault. Duplicate keys and aliases are faults.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

import yaml
from pydantic import AliasChoices, BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)

LONGEST_TEXT = 1 << 18
DEEPEST = 30
UNQUOTED = "unquoted"
"""The kind of a fault whose message does not repeat the value."""
MOST_EVENTS = 10_000

Path = tuple[str | int, ...]
Value = str | list["Value"] | dict[str, "Value"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFault:
    """A fault of the text: `line` counts from 1, `path` leads to the value."""

    line: int
    path: Path
    message: str

    def render(self, file: str) -> str:
        """Return it as `file:line: path: message`."""
        return f"{file}:{self.line}: {self.describe()}"

    def describe(self) -> str:
        """Return it as `path: message`, for a text that was not read from a file."""
        return ": ".join(part for part in (_dotted(self.path), self.message) if part)


@dataclass(slots=True)
class Document:
    """A parsed text: its value, the line of every path, and its faults."""

    value: Value = None
    lines: dict[Path, int] = field(default_factory=dict)
    faults: list[TextFault] = field(default_factory=list)

    def line_of(self, path: Path) -> int:
        """Return the line of a path, or of its nearest parent that was written."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_model(model: type[Model], text: str) -> tuple[Model | None, list[TextFault]]:
    """Return the model that a YAML text contains; None with its faults, in the order of their lines."""
    document = parse(text)
    value = None
    if isinstance(document.value, dict):
        try:
            value = model.model_validate(document.value)
        except ValidationError as error:
            document.faults.extend(_faults(error, document, model))
    elif not document.faults:
        message = "a recipe is a mapping of keys to values; this is not one"
        document.faults.append(TextFault(line=1, path=(), message=message))
    faults = sorted(document.faults, key=lambda fault: fault.line)
    return (None if faults else value), faults


def parse(text: str) -> Document:
    """Parse a YAML text; its faults are in `faults`, never raised."""
    document = Document()
    try:
        refusal = _first_refusal(text)
        if refusal is not None:
            document.faults.append(refusal)
            return document
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        message = " ".join(part for part in (error.problem, error.context) if part)
        if "escape" in message:
            message += "; in single quotes, a backslash is a backslash"
        document.faults.append(TextFault(line=line, path=(), message=f"not YAML: {message}"))
        return document
    except yaml.YAMLError as error:
        document.faults.append(TextFault(line=1, path=(), message=f"not YAML: {str(error).splitlines()[0]}"))
        return document
    except (ValueError, OverflowError) as error:  # PyYAML lets these through: of "\\UFFFFFFFF", for one
        document.faults.append(TextFault(line=1, path=(), message=f"not YAML: {error}"))
        return document
    except RecursionError:
        document.faults.append(TextFault(line=1, path=(), message="nested too deeply"))
        return document
    if node is not None:
        document.value = _read(node, (), document)
    return document


def _first_refusal(text: str) -> TextFault | None:
    """Return the fault of a text that PyYAML would read for long: its time is bounded by these limits."""
    if len(text) > LONGEST_TEXT:
        message = f"has {len(text)} characters; at most {LONGEST_TEXT} are read"
        return TextFault(line=1, path=(), message=message)
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        message = ""
        if isinstance(event, yaml.AliasEvent):
            message = f"aliases (*{event.anchor}) are not understood; write the value out"
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            message = "nested too deeply" if depth > DEEPEST else ""
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if number > MOST_EVENTS:
            message = "has too many values"
        if message:
            line = event.start_mark.line + 1 if event.start_mark else 1
            return TextFault(line=line, path=(), message=message)
    return None


def _read(node: yaml.Node, path: Path, document: Document) -> Value:
    document.lines.setdefault(path, node.start_mark.line + 1)
    match node:
        case yaml.MappingNode():
            return _read_mapping(node, path, document)
        case yaml.SequenceNode():
            return [_read(item, (*path, index), document) for index, item in enumerate(node.value)]
        case _:
            plain_and_empty = node.value == "" and getattr(node, "style", None) is None
            return None if plain_and_empty else _text(node, path, document)


def _text(node: yaml.Node, path: Path, document: Document) -> str:
    """Return a scalar as text; half a surrogate pair, which an escape can write, is none."""
    text = str(node.value)
    whole = text.encode("utf-8", "replace").decode()
    if whole != text:
        line = node.start_mark.line + 1
        document.faults.append(TextFault(line=line, path=path, message="holds half of a surrogate pair"))
    return whole


def _read_mapping(node: yaml.MappingNode, path: Path, document: Document) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            document.faults.append(TextFault(line=line, path=path, message="a key must be a plain word"))
            continue
        key = _text(key_node, path, document)
        inner = (*path, key)
        if key in values:
            first = document.lines[inner]
            document.faults.append(
                TextFault(line=line, path=inner, message=f"written twice (first on line {first})")
            )
            continue
        document.lines[inner] = line
        values[key] = _read(value_node, inner, document)
    return values


def _dotted(path: Path) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _faults(error: ValidationError, document: Document, model: type[BaseModel]) -> list[TextFault]:
    faults: dict[tuple[Any, ...], TextFault] = {}
    for detail in error.errors(include_url=False):
        path = _written_path(detail["loc"], document.value)
        if detail["type"] == "extra_forbidden":
            message = _unknown(model, path)
        else:
            message = _message(detail["type"], detail["msg"], detail.get("input"))
        # A fault of several keys has no path; its message begins with the one to change.
        place = path or tuple(message.partition(" ")[0].rstrip(":").split("."))
        faults.setdefault(path, TextFault(line=document.line_of(place), path=path, message=message))
    return list(faults.values())


def _unknown(model: type[BaseModel], path: Path) -> str:
    """Return the message of a key that its mapping does not have, with the key that it is most like.

    Of two parts of a recipe with that key, the first is named.
    """
    whole, key = model, str(path[-1])
    for part in path[:-1]:
        field = model.model_fields.get(str(part))
        inner = next(_models(field.annotation), None) if field else None
        if inner is None and not isinstance(part, int):
            return "unknown key"
        model = inner or model
    if (name := _field_of(model, key)) is not None:
        return f"means the same as {name}, which is written, too"
    parts = (
        (part, _field_of(inner, key))
        for part, field in whole.model_fields.items()
        for inner in _models(field.annotation)
    )
    near = [
        *(f"{part}.{name}" for part, name in parts if name is not None),
        *get_close_matches(key, list(model.model_fields), n=1),
    ]
    return f"unknown key; did you mean {near[0]}?" if near else "unknown key"


def _field_of(model: type[BaseModel], key: str) -> str | None:
    """Return the name of the field that a key, or another spelling of it, means."""
    for name, one in model.model_fields.items():
        alias = one.validation_alias
        if key == name or (isinstance(alias, AliasChoices) and key in alias.choices):
            return name
    return None


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the models that a type consists of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


_UNION_MEMBERS = {"range", "number", "str", "list[str]"}


def _written_path(loc: tuple[int | str, ...], value: Any) -> tuple[int | str, ...]:  # noqa: ANN401
    """Drop the names of union members from pydantic's path; a missing key ends it."""
    path: list[int | str] = []
    for part in loc:
        match value:
            case dict() if part in value:
                value = value[part]
            case list() if isinstance(part, int):
                value = value[part]
            case dict() if part == loc[-1] and part not in _UNION_MEMBERS:
                value = None
            case _:
                continue
        path.append(part)
    return tuple(path)


def _message(kind: str, message: str, value: object) -> str:
    if kind == "missing":
        return "is missing"
    if value is None:
        return "has no value" + ('; write "" for an empty text' if kind == "string_type" else "")
    text = message.removeprefix("Value error, ")
    if isinstance(value, str) and kind != UNQUOTED and repr(value) not in text:
        return f"{text[:1].lower()}{text[1:]} (it is {value!r})"
    return text
