"""JSON Schema from the types of requests, answers and frames."""

import types
import typing
from typing import Annotated, Any, NamedTuple

import msgspec

from edge.core.parsing.fields import Rule, Shown
from edge.core.parsing.typed import MAX_DIGITS

Json = dict[str, Any]
Struct = type[msgspec.Struct]
_REF = "#/components/schemas/{name}"


class Component(NamedTuple):
    """A struct as a document shows it. `name`: its name there, unless that of its class; `more`: structs whose fields
    follow its own; `closed`: it has no other fields."""

    struct: Struct
    name: str = ""
    more: tuple[Struct, ...] = ()
    closed: bool = False


class Components:
    """The types of one document. Every struct that one of them leads to becomes a component."""

    def __init__(self) -> None:
        self._structs: dict[Struct | Component, Struct] = {}
        self._rules: dict[Struct, tuple[Rule, ...]] = {}

    def published(self, kind: Any) -> Any:
        """Return the type as documents show it, with the types that `Shown` declares in place of decoded ones.

        A Component may stand for its struct, a tuple for the union of its entries.
        """
        if isinstance(kind, Component) or (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            return self._struct(kind)
        if isinstance(kind, tuple):
            return typing.Union[tuple(map(self.published, kind))]  # noqa: UP007
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is Annotated:
            return self._annotated(arguments[0], kind.__metadata__)
        if origin in (typing.Union, types.UnionType):
            return typing.Union[tuple(map(self.published, arguments))]  # noqa: UP007
        if origin in (list, dict):
            return origin[tuple(map(self.published, arguments))]
        return kind

    def any_of(self, *kinds: Any) -> Any:
        """A value of any of these types."""
        found, _ = msgspec.json.schema_components([self.published(kind) for kind in kinds], ref_template=_REF)
        return Annotated[Any, msgspec.Meta(extra_json_schema={"anyOf": list(found)})]

    def schemas(self, *kinds: Any) -> tuple[list[Json], dict[str, Json]]:
        """A schema for each type, and the components of all types so far.

        TypeError: a msgspec.Raw field without `Shown`.
        """
        own = [self.published(kind) for kind in kinds]
        found, components = msgspec.json.schema_components([*own, *self._structs.values()], ref_template=_REF)
        for struct in self._structs.values():
            if rules := self._rules[struct]:
                components[struct.__name__]["allOf"] = list(rules)
        for component in components.values():
            for schema in component.get("properties", {}).values():
                schema.pop("examples", None)
                if schema.get("default", msgspec.UNSET) is None:
                    del schema["default"]
        return list(found[: len(kinds)]), dict(sorted(components.items()))

    def _annotated(self, kind: Any, annotations: tuple[Any, ...]) -> Any:
        shown = [annotation for annotation in annotations if isinstance(annotation, Shown)]
        metas = [annotation for annotation in annotations if isinstance(annotation, msgspec.Meta)]
        if not shown:
            own = self.published(kind)
        elif len(shown[0].kinds) > 1:
            own = self.any_of(*shown[0].kinds)
        else:
            own = self.published(shown[0].kinds[0])
        return Annotated[(own, *metas)] if metas else own

    def _struct(self, kind: Struct | Component) -> Struct:
        if kind not in self._structs:
            struct, name, more, closed = kind if isinstance(kind, Component) else Component(kind)
            config = struct.__struct_config__
            self._structs[kind] = msgspec.defstruct(
                name or struct.__name__,
                [self._field(owner, field) for owner in (struct, *more) for field in msgspec.structs.fields(owner)],
                namespace={"__doc__": struct.__doc__},
                kw_only=True,
                tag=config.tag,
                tag_field=config.tag_field,
                forbid_unknown_fields=closed or config.forbid_unknown_fields,
            )
            self._rules[self._structs[kind]] = getattr(struct, "shown_rules", ())
        return self._structs[kind]

    def _field(self, owner: Struct, field: msgspec.structs.FieldInfo) -> tuple[str, Any, Any]:
        kind = self.published(field.type)
        if "msgspec.Raw" in str(kind):
            raise TypeError(f"{owner.__name__}.{field.name} is decoded later: annotate it with Shown")
        default = None if isinstance(field.default, msgspec.Raw) else field.default
        return field.name, kind, msgspec.field(default=default, name=field.encode_name)


def with_digit_strings(schema: Json, components: dict[str, Json]) -> Json:
    """Return the schema of a request in which each integer may be a string of digits; changes its components too."""
    seen: set[str] = set()

    def changed(part: Any) -> Any:
        if isinstance(part, list):
            return [changed(entry) for entry in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            name = part["$ref"].rpartition("/")[2]
            if name not in seen:
                seen.add(name)
                components[name] = changed(components[name])
            return part
        if "allOf" in part:
            return {**changed({key: value for key, value in part.items() if key != "allOf"}), "allOf": part["allOf"]}
        if part.get("type") == "integer":
            return _integer_or_digits(part)
        if _is_integer_enum(part):
            return {**part, "enum": [*part["enum"], *map(str, part["enum"])]}
        found = {key: changed(value) for key, value in part.items()}
        if "anyOf" in part:
            found["anyOf"] = [kind for entry in found["anyOf"] for kind in entry.get("anyOf", [entry])]
        return found

    found: Json = changed(schema)
    return found


def _integer_or_digits(schema: Json) -> Json:
    integer = {key: value for key, value in schema.items() if key not in _OF_A_FIELD}
    low: int = schema.get("minimum", -1)
    high: int = schema.get("maximum") or schema.get("exclusiveMaximum") or 10**19
    length = len(str(max(high, -low)))
    digits = f"[{low}-{high}]" if low >= 0 and high <= 9 else f"[0-9]{{1,{length}}}"
    zeros = f"0{{0,{MAX_DIGITS - length}}}"
    text = {"type": "string", "pattern": f"^{'-?' if low < 0 else ''}{zeros}{digits}$"}
    return {key: schema[key] for key in _OF_A_FIELD if key in schema} | {"anyOf": [integer, text]}


def _is_integer_enum(schema: Json) -> bool:
    values = schema.get("enum", [])
    return bool(values) and all(isinstance(value, int) and not isinstance(value, bool) for value in values)


_OF_A_FIELD = ("description", "default")


def example_of(struct: Struct, /, **more: Any) -> Json:
    """An example made of the examples in the types of the struct's fields; `more`: further or other fields."""
    found: Json = {}
    for field in msgspec.structs.fields(struct):
        for annotation in getattr(field.type, "__metadata__", ()):
            if isinstance(annotation, msgspec.Meta) and annotation.examples:
                found[field.encode_name] = annotation.examples[0]
    return found | more
