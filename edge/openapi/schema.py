"""JSON Schema from the types that read requests."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec.structs import FieldInfo

Json = dict[str, Any]
_REF = "#/components/schemas/{name}"


def completed(
    struct: type[msgspec.Struct],
    name: str | None = None,
    /,
    *,
    closed: bool = False,
    only: Collection[str] | None = None,
    **fields: Any,
) -> Any:
    """The struct as a document shows it: the given fields in place of its own, those it has not at its end.

    A field that is decoded later (msgspec.Raw) must be given, or the type is refused: nothing is left out unnoticed.
    A pair in place of a type is type and default; without one a field that had a default has null. `closed`: it has no
    other fields; `only`: those of its own that are shown.
    """
    own = [field for field in msgspec.structs.fields(struct) if only is None or field.name in only]
    shown = [_shown(struct, field, fields.pop(field.name, None)) for field in own]
    shown += [_defined(name, kind) for name, kind in fields.items()]
    config = struct.__struct_config__
    return msgspec.defstruct(
        name or struct.__name__,
        shown,
        namespace={"__doc__": struct.__doc__},
        kw_only=True,
        tag=config.tag,
        tag_field=config.tag_field,
        forbid_unknown_fields=closed or config.forbid_unknown_fields,
    )


def _shown(struct: type, field: FieldInfo, given: Any) -> tuple[str, Any, Any]:
    if given is None and "msgspec.Raw" in str(field.type):
        raise TypeError(f"{struct.__name__}.{field.name} is decoded later: say what it holds")
    if given is None:
        kind, default = field.type, field.default
    elif isinstance(given, tuple):
        kind, default = given
    else:
        kind, default = given, msgspec.NODEFAULT if field.required else None
    return field.name, kind, msgspec.field(default=default, name=field.encode_name)


def _defined(name: str, given: Any) -> tuple[str, Any, Any]:
    kind, default = given if isinstance(given, tuple) else (given, msgspec.NODEFAULT)
    return name, kind, msgspec.field(default=default)


def one_of(*kinds: Any) -> Any:
    """A value of any of these types; msgspec itself has no unions of several structs. Name the structs as parts too."""
    schemas, _ = msgspec.json.schema_components(kinds, ref_template=_REF)
    return Annotated[Any, msgspec.Meta(extra_json_schema={"anyOf": list(schemas)})]


def schemas(kinds: Sequence[Any], parts: Iterable[Any], texts: Mapping[str, str]) -> tuple[list[Json], dict[str, Json]]:
    """A schema for each type, and the components they refer to. `texts`: what each property is, "Component.property".

    ValueError: a text without its property.
    """
    made, components = msgspec.json.schema_components([*kinds, *parts], ref_template=_REF)
    for place, text in texts.items():
        component, _, name = place.partition(".")
        if name not in components.get(component, {}).get("properties", {}):
            raise ValueError(f"{place} is described, but is no property")
        components[component]["properties"][name]["description"] = text
    for component in components.values():
        for schema in component.get("properties", {}).values():
            if schema.get("default", msgspec.UNSET) is None:
                del schema["default"]
    return list(made[: len(kinds)]), dict(sorted(components.items()))
