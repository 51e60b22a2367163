"""EC2's answers as XML, made from moto's objects in less than half of moto's own time.

DescribeInstances of a thousand instances has 140,000 members, and moto's serializer looks for each under up
to twelve names, which it makes anew each time. Here they are made once by member and class.
"""

from collections.abc import Callable, Mapping
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from moto.core.common_types import TYPE_RESPONSE
from moto.core.constants import MISSING
from moto.core.responses import ActionContext, ActionResult
from moto.core.serialize import AttributePickerContext, EC2Serializer, XFormedAttributePicker
from moto.core.utils import get_value

_Lookup = tuple[tuple[str, ...], Callable[[Any], Any] | None]
_DECLARATION = '<?xml version="1.0" encoding="utf-8"?>\n'


class Answer(ActionResult):
    """A result of moto that is serialized by `_Serializer`."""

    def execute_result(self, context: ActionContext) -> TYPE_RESPONSE:
        """Return status, headers and body of the answer."""
        transforms = context.response.RESPONSE_KEY_PATH_TO_TRANSFORMER
        answer = _Serializer(context.operation_model, transforms).serialize(self.result)
        return answer["status_code"], dict(answer["headers"]), answer["body"]


class _Serializer(EC2Serializer):
    """moto's serializer of EC2's answers, with quicker ways to find a member and to write the XML."""

    # botocore has one shape by member and action. An entry: the names of a member in objects of a class, and
    # what changes its value.
    _lookups: dict[tuple[object, type], _Lookup] = {}  # noqa: RUF012 - of the process

    def __init__(self, operation_model: Any, transforms: Mapping[str, Callable[[Any], Any]]) -> None:  # noqa: ANN401
        super().__init__(operation_model)
        self._transforms = transforms

    def get_value(self, value: Any, key: str, shape: Any) -> Any:  # noqa: ANN401 - of moto's object
        """Return the value of a member of an object; None if it has none."""
        lookup = self._lookups.get((shape, type(value)))
        if lookup is None:
            lookup = self._lookups[shape, type(value)] = self._look_up(value, key, shape)
        names, transform = lookup
        for name in names:
            member = get_value(value, name, MISSING)
            if member is not MISSING:
                return transform(member) if transform else member
        return transform(None) if transform else None

    def _look_up(self, value: object, key: str, shape: Any) -> _Lookup:  # noqa: ANN401 - botocore has no types
        context = AttributePickerContext(
            obj=value,
            key=key,
            shape=shape,
            operation_model=self.operation_model,
            service_model=self.service_model,
            key_path=".".join(self.path),
        )
        names = tuple(dict.fromkeys(XFormedAttributePicker().get_possible_keys(context)))
        path = f"{context.key_path}.{key}"
        ends = (transform for end, transform in self._transforms.items() if path.endswith(end))
        return names, next(ends, None)

    def _serialize_body(self, body: Mapping[str, Any]) -> str:
        ((name, content),) = body.items()
        namespace = quoteattr(content.pop("@xmlns"))
        parts = [f"{_DECLARATION}<{name} xmlns={namespace}>"]
        _write(content, parts)
        return "".join([*parts, f"</{name}>"])


def _write(content: Mapping[str, Any], parts: list[str]) -> None:
    """Append the XML of elements by their names; a list repeats its element."""
    for name, value in content.items():
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, dict):
                parts.append(f"<{name}>")
                _write(item, parts)
                parts.append(f"</{name}>")
            else:
                parts.append(f"<{name}>{'' if item is None else escape(str(item))}</{name}>")
