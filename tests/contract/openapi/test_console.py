"""The document of `/console/v1`: valid, complete, and true of a running console."""

import json
from collections.abc import Mapping
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis import GenerationMode

from console.calls import CALLS, DOCUMENT_PATH, document, written
from edge.openapi.v2_examples import PUSHES
from testkit import plain_http
from testkit.examples import examples
from testkit.installation.sample import SampleService
from testkit.repository import ROOT
from tests.contract.openapi.test_schemathesis import CHECKS

OPERATIONS = [(path, method) for path, methods in document()["paths"].items() for method in methods]
OUT_OF_ORDER = [
    ("/console/v1/apps/{appkey}/pushes", "post"),
    ("/console/v1/apps/{appkey}/pause", "post"),
    ("/console/v1/apps/{appkey}/statistics", "get"),
    ("/console/v1/audit", "get"),
]
"""Operations that are also made with requests that do not fit the document; each shape of request is among them."""


def test_the_document_is_valid_and_has_a_copy() -> None:
    OpenAPIV31SpecValidator(document()).validate()
    copy = ROOT / "docs" / "openapi" / "console.json"
    assert copy.read_bytes() == written(), "run: python -m carillon.openapi docs/openapi"


def test_every_call_is_in_the_document_and_the_other_way_round() -> None:
    assert set(OPERATIONS) == {(call.path, call.method.lower()) for call in CALLS}
    ids = [operation["operationId"] for methods in document()["paths"].values() for operation in methods.values()]
    assert len(set(ids)) == len(ids)


def test_every_property_and_parameter_is_described_and_examples_fit() -> None:
    whole = document()
    for name, schema in whole["components"]["schemas"].items():
        for field, inner in schema.get("properties", {}).items():
            assert field == "type" or inner.get("description"), f"{name}.{field} is not described"
    for path, method in OPERATIONS:
        for parameter in whole["paths"][path][method]["parameters"]:
            assert parameter["description"], f"{path}: {parameter['name']} is not described"
    push = whole["paths"]["/console/v1/apps/{appkey}/pushes"]["post"]["requestBody"]["content"]["application/json"]
    validator = jsonschema_rs.Draft202012Validator({**push["schema"], "components": whole["components"]})
    assert push["examples"].keys() == PUSHES.keys()
    for example in push["examples"].values():
        validator.validate(example["value"])


def test_a_running_console_serves_the_document(service: SampleService) -> None:
    with plain_http.client() as http:
        assert http.get(service.installation.console_url() + DOCUMENT_PATH).content == written()


class Account:
    """A team with an app of its own, whose secret key calls may change; each gets an API token, for their limits."""

    def __init__(self, service: SampleService) -> None:
        self._run = service.installation.carillon
        self._made = 0
        self.team_id = json.loads(self._run("team", "add", "Fuzzed", "--json"))["team_id"]
        self.appkey = service.installation.create_app().appkey
        self._run("team", "give-app", "Fuzzed", self.appkey)

    def headers(self) -> Mapping[str, str]:
        self._made += 1
        made = self._run("token", "create", "Fuzzed", str(self._made), "--role", "administrator", "--json")
        return {"Authorization": f"Bearer {json.loads(made)['token']}"}


@pytest.fixture(scope="module")
def account(service: SampleService) -> Account:
    return Account(service)


@pytest.fixture
def formats(service: SampleService, account: Account) -> None:
    """Register formats whose values mostly name what exists."""
    names = {
        "appkey": [*[account.appkey] * 4, service.ios[0].appkey, "0"],
        "appkey-android": [account.appkey],
        "appkey-ios": [service.ios[0].appkey],
        "token": [service.device["token"], "unknown"],
        "token-ios": ["0" * 64],
        "team-id": [account.team_id, "0"],
        "task-key": ["0" * 32],
        "draft-id": ["0" * 32],
        "minute": ["2026-01-01 10:00"],
    }
    for name, values in names.items():
        schemathesis.openapi.format(name, st.sampled_from(values))


@pytest.mark.long
@pytest.mark.hypothesis
@pytest.mark.parametrize(
    ("path", "method", "mode"),
    [
        *((path, method, GenerationMode.POSITIVE) for path, method in OPERATIONS),
        *((path, method, GenerationMode.NEGATIVE) for path, method in OUT_OF_ORDER),
    ],
)
def test_the_answer_to_any_call_matches_the_document(
    service: SampleService, account: Account, formats: None, path: str, method: str, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_dict(document())
    schema.config.update(base_url=service.installation.console_url())
    headers = account.headers()
    statuses: list[int] = []

    @seed(1)
    @settings(max_examples=examples(30), deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=schema[path][method.upper()].as_strategy(generation_mode=mode))
    def call(case: Any) -> None:
        response = case.call(headers=headers)
        if any(part in (".", "..") for part in response.request.url.split("/")) or response.status_code == 405:
            return
        case.validate_response(response, checks=CHECKS)
        statuses.append(response.status_code)

    call()
    assert len(statuses) >= examples(30) // 4
    if mode is GenerationMode.POSITIVE:
        assert not {401, 429} & set(statuses)
