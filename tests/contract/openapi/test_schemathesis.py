"""Signed requests that schemathesis generates from the documents, against the running interfaces."""

import json
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from schemathesis import CheckContext, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from edge.core.replay_protection import NONCE_HEADER, SIGNATURE_HEADER, TIME_HEADER
from edge.openapi import android
from edge.openapi.documents import DOCUMENTS
from testkit.examples import examples
from testkit.installation.sample import SampleService
from testkit.signing import signed
from tests.contract.openapi.test_limits import OPERATIONS, Call, ExampleData
from tests.contract.openapi.unread import read_part

EXAMPLES = examples(30)
MOST_SEEDS = 20
"""Seeds that are tried until a request is accepted: of few examples, each may name something that does not exist."""
NAMES_WHAT_MUST_EXIST = {
    ("delete", "/push"),
    ("delete", "/timed_msg"),
    ("post", "/v2/timedtaskdetail"),
    ("delete", "/v2/timed"),
}
"""Requests about a broadcast or a task, which are refused with 400 when it does not exist."""

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def no_fault_of_the_service(context: CheckContext, response: Response, case: Any) -> None:
    """Check the answer's result: HTTP is 200 even for faults of the service."""
    answer = json.loads(response.content)
    assert answer.get("result", answer.get("code", 0)) in (0, 400, 401, 413), answer


def check_accepted(call: Call, body: Any) -> None:
    """Check an accepted request against the document, apart from the fields that it leaves unread."""
    whole = {**call.schema, "components": call.document["components"]}
    for error in jsonschema_rs.Draft202012Validator(whole).iter_errors(read_part(call.interface, call.path, body)):
        raise AssertionError(f"accepted, though {list(error.instance_path)}: {error.message}: {body}")


def without_sign(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "sign"}


def secrets_of(data: ExampleData, path: str, body: Any) -> list[str]:
    """Return the secrets of the apps that a request names in the documented way."""
    try:
        return [app.secret_key for app in data.apps(path, body)]
    except (AttributeError, KeyError, TypeError):
        return []


@pytest.fixture
def formats(service: SampleService) -> None:
    """Register formats whose values mostly name existing apps, devices and times.

    The requests of an earlier test may have deleted the iOS devices.
    """
    service.register_ios_devices()
    ios = [app.appkey for app in service.ios]
    names = {
        "appkey-android": [service.android.appkey],
        "appkey-ios": ios,
        "appkey": [service.android.appkey, *ios],
        "token": [service.device["token"], service.ios_devices[0]["token"], "unknown"],
        "token-ios": [service.ios_devices[0]["token"], "0" * 64],
        "task-key": ["0" * 32],
        "sign": ["0" * 32],
        "minute": ["2026-01-01 10:00", *[android.SEND_TIME] * 4, "2027-02-30 00:00"],
    }
    for name, values in names.items():
        schemathesis.openapi.format(name, st.sampled_from(values))


@pytest.mark.hypothesis
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["in order", "out of order"])
@pytest.mark.parametrize(("interface", "method", "path"), OPERATIONS)
def test_the_answer_to_any_request_matches_the_document(
    service: SampleService, formats: None, interface: str, method: str, path: str, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_dict(DOCUMENTS[interface]())
    schema.config.update(base_url=service.urls[interface])
    data = ExampleData(service)
    call = Call(interface, method, path)
    results: list[int] = []

    must_be_accepted = mode is GenerationMode.POSITIVE and (method, path) not in NAMES_WHAT_MUST_EXIST

    def send(case: Any) -> None:
        case.body = data.real(case.body)
        if isinstance(case.body, dict) and path != "/device/v1":
            case.body = json.loads(signed(without_sign(case.body), *secrets_of(data, path, case.body)))
        for header in (TIME_HEADER, NONCE_HEADER, SIGNATURE_HEADER):
            if case.headers and mode is GenerationMode.POSITIVE:
                case.headers.pop(header, None)  # no invented signature is right
        response = case.call()
        case.validate_response(response, checks=[*CHECKS, no_fault_of_the_service])
        answer = json.loads(response.content)
        results.append(answer.get("result", answer.get("code", 0)))
        if results[-1] == 0:
            check_accepted(call, case.body)

    bounds = settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    cases = given(case=schema[path][method.upper()].as_strategy(generation_mode=mode))
    for number in range(1, MOST_SEEDS + 1):
        seed(number)(bounds(cases(send)))()
        if 0 in results or not must_be_accepted:
            break
    assert len(results) >= EXAMPLES // 4
    if must_be_accepted:
        assert 0 in results
