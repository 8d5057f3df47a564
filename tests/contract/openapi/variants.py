"""Variants of a request around every limit of its schema: one at the limit, one past it."""

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jsonschema_rs

from services.domain.device_protocol.frames import MAX_FRAME_BYTES

Json = dict[str, Any]
Put = Callable[[Any], Json]
_BY_TYPE: dict[str, Any] = {"object": {"x": 1}, "array": [{}], "boolean": True, "string": "nonsense", "number": 1.5}
_NAMES = ("appkey", "appkey-android", "appkey-ios", "task-key", "sign")
"""Formats of texts that name something; any other text is well-formed but unknown."""

_NO_MATCH = ("", "nonsense", "a\0b", "2027-02-30 10:00:00", "２０２７-01-31 10:00")


class Variant(NamedTuple):
    """An example with one value changed. `path`: the field's name in errors; `fits`: whether its value is in order."""

    path: str
    body: Json
    fits: bool


class Variants:
    """Variants of one document's requests. `seen` collects the properties of the examples as (component, name)."""

    def __init__(self, document: Json) -> None:
        self._document = document
        self._whole: Json = {}
        self._validators: dict[int, tuple[Json, jsonschema_rs.Draft202012Validator]] = {}
        """By the identity of the schema, which is kept with it: the components are compiled with each."""

        self.seen: set[tuple[str, str]] = set()

    def of(self, schema: Json, example: Json) -> Iterator[Variant]:
        self._whole = schema
        yield from self._walk(schema, example, "", lambda value: copy.deepcopy(value))

    def fits(self, schema: Json, value: Any) -> bool:
        if id(schema) not in self._validators:
            whole = {**schema, "components": self._document["components"]}
            self._validators[id(schema)] = schema, jsonschema_rs.Draft202012Validator(whole)
        return bool(self._validators[id(schema)][1].is_valid(value))

    def _walk(self, schema: Json, value: Any, path: str, put: Put) -> Iterator[Variant]:
        if path:
            for wrong in map(put, self._wrong_types(schema)):
                if not self.fits(self._whole, wrong):
                    yield Variant(path, wrong, fits=False)
        limits = {name: limit for name, limit in schema.items() if name.startswith("x-")}
        name, schema = self._branch(schema, value)
        schema = schema | limits
        match value:
            case dict():
                yield from self._object(name, schema, value, path, put)
            case list():
                yield from self._array(schema, value, path, put)
            case str():
                yield from self._text(schema, path, put)
            case int() if "enum" not in schema:
                yield from self._number(schema, path, put)
        for choice in schema.get("enum", ()):
            yield Variant(path, put(choice), fits=True)

    def _branch(self, schema: Json, value: Any) -> tuple[str, Json]:
        """Return the component's name, if any, and the alternative of the schema that fits the value."""
        name = ""
        while "$ref" in schema or "anyOf" in schema:
            if "$ref" in schema:
                name = schema["$ref"].rpartition("/")[2]
                schema = self._document["components"]["schemas"][name]
            else:
                schema = next(branch for branch in schema["anyOf"] if self.fits(branch, value))
        return name, schema

    def _types(self, schema: Json) -> set[str]:
        if "$ref" in schema:
            return self._types(self._document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
        if "anyOf" in schema:
            return set().union(*map(self._types, schema["anyOf"]))
        if "enum" in schema:
            return {"enum"}
        return {schema["type"]} if "type" in schema else set(_BY_TYPE)

    def _wrong_types(self, schema: Json) -> Iterator[Any]:
        types = self._types(schema)
        yield from (value for kind, value in _BY_TYPE.items() if kind not in types)

    def _object(self, name: str, schema: Json, value: Json, path: str, put: Put) -> Iterator[Variant]:
        properties = schema.get("properties", {})
        for key, inner in value.items():
            own = f"{path}.{key}".lstrip(".")
            self.seen.add((name, key))
            inner_schema = properties.get(key, schema.get("additionalProperties"))
            if isinstance(inner_schema, dict):
                yield from self._walk(inner_schema, inner, own, _placed(put, value, key))
        for key in schema.get("required", ()):
            rest = {other: inner for other, inner in value.items() if other != key}
            yield Variant(f"{path}.{key}".lstrip("."), put(rest), fits=False)
        if schema.get("additionalProperties") is False:
            yield Variant(f"{path}.nonsense".lstrip("."), put({**value, "nonsense": 1}), fits=False)
        if schema.get("minProperties"):
            yield Variant(path, put({}), fits=False)
        if limit := schema.get("maxProperties"):
            inner = next(iter(value.values()))
            yield Variant(path, put({f"{number}": inner for number in range(limit)}), fits=True)
            yield Variant(path, put({f"{number}": inner for number in range(limit + 1)}), fits=False)
        if limit := schema.get("x-maxBytes"):
            yield Variant(path, put(_grown(value, limit)), fits=True)
            yield Variant(path, put(_grown(value, limit + 1)), fits=False)

    def _array(self, schema: Json, value: list[Any], path: str, put: Put) -> Iterator[Variant]:
        for index, item in enumerate(value):
            yield from self._walk(schema["items"], item, f"{path}[{index}]", _placed(put, value, index))
        if schema.get("minItems"):
            yield Variant(path, put([*value, *value][: schema["minItems"]]), fits=True)
            yield Variant(path, put(value[: schema["minItems"] - 1]), fits=False)
        if "maxItems" in schema:
            if not schema.get("uniqueItems"):
                yield Variant(path, put([value[0]] * schema["maxItems"]), fits=True)
            yield Variant(path, put([value[0]] * (schema["maxItems"] + 1)), fits=False)

    def _text(self, schema: Json, path: str, put: Put) -> Iterator[Variant]:
        if schema.get("minLength"):
            yield Variant(path, put(""), fits=False)
        if schema.get("format") in _NAMES or "enum" in schema:
            return
        if "maxLength" in schema:
            # A frame of a device has no room for the longest proofs in letters of three bytes.
            letter = "世" if 3 * schema["maxLength"] < MAX_FRAME_BYTES else "x"
            longest = letter * schema["maxLength"]
            if re.search(schema.get("pattern", ""), longest):
                yield Variant(path, put(longest), fits=True)
            yield Variant(path, put(letter * (schema["maxLength"] + 1)), fits=False)
        if limit := schema.get("x-maxBytes"):
            yield Variant(path, put("é" * (limit // 2)), fits=True)
            yield Variant(path, put("x" * (limit + 1)), fits=False)
            yield Variant(path, put("é" * (limit // 2 + 1)), fits=False)
        if "pattern" in schema:
            for text in _NO_MATCH:
                if not re.search(schema["pattern"], text):
                    yield Variant(path, put(text), fits=False)

    def _number(self, schema: Json, path: str, put: Put) -> Iterator[Variant]:
        if "minimum" in schema:
            yield Variant(path, put(schema["minimum"]), fits=True)
            yield Variant(path, put(schema["minimum"] - 1), fits=False)
        if "maximum" in schema:
            yield Variant(path, put(schema["maximum"]), fits=True)
            yield Variant(path, put(schema["maximum"] + 1), fits=False)
        if "exclusiveMaximum" in schema:
            yield Variant(path, put(schema["exclusiveMaximum"] - 1), fits=True)
            yield Variant(path, put(schema["exclusiveMaximum"]), fits=False)


def _placed(put: Put, container: Any, place: Any) -> Put:
    """Return a function that replaces one value of a container inside the whole request."""

    def put_inside(new: Any) -> Json:
        changed = copy.copy(container)
        changed[place] = new
        return put(changed)

    return put_inside


def _grown(value: Json, size: int) -> Json:
    """Lengthen the first channel of a filter so that its compact JSON has `size` bytes."""
    missing = size - len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    return {**value, "channel": [value["channel"][0] + "x" * missing]}
