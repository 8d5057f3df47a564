"""The published documents: complete, well-formed, served, and equal to the copies in docs/openapi."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import jsonschema_rs
import msgspec
import pytest

from edge.core.parsing.fields import Name, Shown, described
from edge.core.parsing.typed import ABSENT
from edge.openapi.documents import ASYNCAPI_PATH, DOCUMENTS, OPENAPI_PATH, document_bytes
from edge.openapi.schema import Component, Components, example_of
from services.domain.device_protocol import frames
from services.domain.device_protocol.pushes import PushFields
from testkit.installation.sample import INTERFACES, SampleService
from testkit.repository import ROOT
from tests.contract.openapi.variants import Json, Variants

DOCS = ROOT / "docs" / "openapi"
PLACES = [("device", "v2", ASYNCAPI_PATH), *((interface, interface, OPENAPI_PATH) for interface in INTERFACES)]


@pytest.mark.parametrize(("name", "interface", "path"), PLACES)
def test_each_interface_serves_its_document_and_docs_has_a_copy(
    service: SampleService, name: str, interface: str, path: str
) -> None:
    served = service.get(interface, path)
    assert served.status_code == 200
    assert served.headers["content-type"] == "application/json"
    assert served.content == document_bytes(name)
    assert (DOCS / f"{name}.json").read_bytes() == served.content, "run: python -m carillon.openapi docs/openapi"


def objects(value: Any) -> Iterator[Json]:
    """Yield every object inside a JSON value."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(inner)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_reference_resolves_and_every_component_is_used(name: str) -> None:
    document = DOCUMENTS[name]()
    references = {found["$ref"] for found in objects(document) if "$ref" in found}
    for reference in references:
        place: Any = document
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]
    own = {f"#/components/schemas/{component}" for component in document["components"]["schemas"]}
    assert own <= references


@pytest.mark.parametrize("name", DOCUMENTS)
def test_schemas_are_valid_and_every_property_is_described(name: str) -> None:
    components = DOCUMENTS[name]()["components"]["schemas"]
    for component, schema in components.items():
        jsonschema_rs.meta.validate({**schema, "$schema": "https://json-schema.org/draft/2020-12/schema"})
        for field, inner in schema.get("properties", {}).items():
            assert field == "type" or inner.get("description"), f"{component}.{field} is not described"


@pytest.mark.parametrize("interface", INTERFACES)
def test_examples_fit_and_show_every_property_of_requests(interface: str) -> None:
    document = DOCUMENTS[interface]()
    variants = Variants(document)
    reachable: set[str] = set()
    for operation in (operation for methods in document["paths"].values() for operation in methods.values()):
        body = operation["requestBody"]["content"]["application/json"]
        reachable |= components_of(body["schema"], document)
        for name, example in body["examples"].items():
            assert variants.fits(body["schema"], example["value"]), name
            for _ in variants.of(body["schema"], example["value"]):
                pass
    components = document["components"]["schemas"]
    every = {(component, field) for component in reachable for field in components[component].get("properties", {})}
    assert every <= variants.seen


def components_of(schema: Any, document: Json) -> set[str]:
    """Return every component that a schema refers to, directly or not."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        for inner in objects(waiting.pop()):
            name = str(inner.get("$ref", "")).rpartition("/")[2]
            if name and name not in found:
                found.add(name)
                waiting.append(document["components"]["schemas"][name])
    return found


def test_every_frame_of_the_device_protocol_is_documented_and_its_example_decodes() -> None:
    document = DOCUMENTS["device"]()
    messages = document["components"]["messages"]
    from_device = {message["$ref"].rpartition("/")[2] for operation in document["operations"].values()
                   if operation["action"] == "receive" for message in operation["messages"]}  # fmt: skip
    decoded = {}
    for name, message in messages.items():
        payload = message["examples"][0]["payload"]
        whole = {**message["payload"], "components": document["components"]}
        jsonschema_rs.Draft202012Validator(whole).validate(payload)
        if name in from_device:
            decoded[name] = type(frames.decode_frame(json.dumps(payload).encode()))
    assert set(decoded.values()) == set(frames.Frame.__args__)


def test_the_push_frame_is_the_one_that_the_gateway_sends() -> None:
    documented = DOCUMENTS["device"]()["components"]["schemas"]
    _, sent = msgspec.json.schema_components([PushFields], ref_template="#/components/schemas/{name}")
    assert documented["Push"] != sent["PushFields"]
    shown, made = documented["Push"]["properties"], sent["PushFields"]["properties"]
    assert shown.keys() - {"type", "msgid"} == made.keys()
    for name in made.keys() - {"is_notif", "click"}:
        assert {key: value for key, value in shown[name].items() if key != "description"} == made[name]
    assert documented["Click"]["properties"].keys() == sent["PushClick"]["properties"].keys()


def test_a_field_that_is_decoded_later_cannot_be_left_out() -> None:
    class Undeclared(msgspec.Struct):
        tag: msgspec.Raw

    with pytest.raises(TypeError, match=r"Undeclared\.tag is decoded later"):
        Components().schemas(Undeclared)


def test_a_documented_field_needs_its_type_only() -> None:
    """Type, limits, description and example of a field come from its annotation."""

    class Tags(msgspec.Struct):
        names: Annotated[list[Name], msgspec.Meta(max_length=2)]

    class Body(msgspec.Struct):
        sound: Annotated[str | None, described("A sound.", "bell")] = None
        tags: Annotated[msgspec.Raw, Shown(Tags | None), described("Tags.")] = ABSENT

    class Signed(msgspec.Struct):
        sign: Annotated[str, described("The sign.")]

    (reference,), components = Components().schemas(Component(Body, "Push", (Signed,)))
    assert reference == {"$ref": "#/components/schemas/Push"}
    push = components["Push"]
    assert push["required"] == ["sign"]
    assert push["properties"]["sound"] == {
        "anyOf": [{"type": "string"}, {"type": "null"}],
        "description": "A sound.",
    }
    assert push["properties"]["tags"]["description"] == "Tags."
    assert {"$ref": "#/components/schemas/Tags"} in push["properties"]["tags"]["anyOf"]
    assert components["Tags"]["properties"]["names"]["maxItems"] == 2
    assert example_of(Body, tags={"names": ["a"]}) == {"sound": "bell", "tags": {"names": ["a"]}}
