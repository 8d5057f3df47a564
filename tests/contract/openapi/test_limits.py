"""Each document against its interface: every limit at its edge and one past it, through HTTP."""

import re
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import jsonschema_rs
import pytest

from edge.core.idempotency import HEADER
from edge.core.replay_protection import NONCE_HEADER, SIGNATURE_HEADER, TIME_HEADER
from edge.openapi import android, device, ios, v2_examples
from edge.openapi.documents import DOCUMENTS
from testkit.installation.app_server import AppCredentials
from testkit.installation.sample import INTERFACES, SampleService
from tests.contract.openapi.variants import Json, Variants

_PROOF = re.compile(r"^(sign|key|token|(sendTo\.)?appkey\b.*)$")
"""Fields that authenticate a request: a wrong one is answered as a wrong sign."""

OPERATIONS = [
    pytest.param(interface, method, path, id=f"{interface} {method} {path}")
    for interface in INTERFACES
    for path, methods in DOCUMENTS[interface]()["paths"].items()
    for method in methods
]


class ExampleData:
    """Replaces the invented apps, devices and times of the documents' examples by real ones of a running service."""

    def __init__(self, service: SampleService) -> None:
        self._service = service
        soon = datetime.now(ZoneInfo("Asia/Shanghai")) + timedelta(hours=1)
        key = service.ios_devices[0]["key"]
        self._real: dict[str | int, Any] = {
            android.APPKEY: service.android.appkey,
            ios.APPKEY: service.ios[0].appkey,
            v2_examples.SECOND_IOS: service.ios[1].appkey,
            android.TOKEN: service.device["token"],
            device.KEY: key,
            device.ANDROID_KEY: service.device["key"],
            android.SEND_TIME: soon.strftime("%Y-%m-%d %H:%M"),
        }

    def real(self, value: Any) -> Any:
        match value:
            case dict():
                return {self.real(key): self.real(inner) for key, inner in value.items()}
            case list():
                return [self.real(inner) for inner in value]
            case str() | int():
                return self._real.get(value, value)
            case _:
                return value

    def apps(self, path: str, body: Json) -> list[AppCredentials]:
        """Return the apps that sign a request, in order; none for requests of devices."""
        if path == "/device/v1":
            return []
        named = body["sendTo"]["appkey"] if "sendTo" in body else body["appkey"]
        keys: list[Any] = [named.get("android"), named.get("ios")] if isinstance(named, dict) else [named]
        flat = [key for each in keys for key in (each if isinstance(each, list) else [each])]
        known = {app.appkey: app for app in (self._service.android, *self._service.ios)}
        return [known[key] for key in flat if key in known]

    def answer(self, call: "Call", body: Json, apps: list[AppCredentials]) -> Json:
        """Send a request and return the answer, which must match the document."""
        response = self._service.send(call.interface, call.method.upper(), call.path, body, *apps)
        assert response.status_code == 200, response.text
        content: Json = response.json()
        call.answers.validate(content)
        return content

    def create_examples_targets(self) -> None:
        """Create the broadcast and the task that examples cancel, each to be cancelled once."""
        broadcast = Call("android", "post", "/push")
        plain = self.real({"appkey": android.APPKEY, "message": "x", "is_notif": 0})
        self._real[android.MSGID] = self.answer(broadcast, plain, [self._service.android])["msgid"]
        push = Call("v2", "post", "/v2/push")
        timed = self.real({**push.examples()["everyone"], "option": {"timed": 2, "send_time_interval": 3600}})
        self._real[android.TASK_KEY] = self.answer(push, timed, self.apps(push.path, timed))["task_key"]


class Call:
    """An operation of an interface's document."""

    def __init__(self, interface: str, method: str, path: str) -> None:
        self.interface, self.method, self.path = interface, method, path
        self.document = DOCUMENTS[interface]()
        operation = self.document["paths"][path][method]
        self._body = operation["requestBody"]["content"]["application/json"]
        self.schema: Json = self._body["schema"]
        answers = operation["responses"]["200"]["content"]["application/json"]["schema"]
        self.answers = jsonschema_rs.Draft202012Validator({**answers, "components": self.document["components"]})

    def examples(self) -> dict[str, Json]:
        return {name: example["value"] for name, example in self._body["examples"].items()}


@pytest.fixture(scope="module")
def data(service: SampleService) -> ExampleData:
    return ExampleData(service)


def refusal(answer: Json) -> str | None:
    """Return the problem that an answer reports, or None."""
    code = answer.get("result", answer.get("code"))
    assert code in (None, 0, 400, 401), answer
    return str(answer["desc"]).removeprefix("input error: ") if code else None


def names(desc: str, path: str) -> bool:
    """Whether an error names this field or a field that contains it."""
    if desc in ("sign not correct", "unauthorized"):
        return _PROOF.search(path) is not None
    if desc.startswith("params"):
        path = re.sub(r"^param\b", "params", path)
    steps = re.findall(r"[^.\[]+|\[\d+\]", path)
    if f"missing required field `{steps[-1]}`" in desc:
        return True
    places = [
        "".join(f".{step}" if step[0] != "[" else step for step in steps[:end])[1:] for end in range(1, len(steps) + 1)
    ]
    return any(re.match(re.escape(place) + r"(?![\w-])", desc) for place in places)


@pytest.mark.parametrize(("interface", "method", "path"), OPERATIONS)
def test_every_example_is_accepted(data: ExampleData, interface: str, method: str, path: str) -> None:
    call = Call(interface, method, path)
    for name, example in call.examples().items():
        data.create_examples_targets()
        body = data.real(example)
        answer = data.answer(call, body, data.apps(path, body))
        assert refusal(answer) is None, name


@pytest.mark.long
@pytest.mark.parametrize(("interface", "method", "path"), OPERATIONS)
def test_the_interface_enforces_its_document(data: ExampleData, interface: str, method: str, path: str) -> None:
    call = Call(interface, method, path)
    variants = Variants(call.document)
    problems = []
    count = 0
    for name, example in call.examples().items():
        whole = data.real(example)
        apps = data.apps(path, whole)
        for field, body, fits in variants.of(call.schema, whole):
            count += 1
            if whole.get("type") in ("hello", "set_attributes") and field.partition(".")[0] == "device":
                continue  # an odd attribute keeps no device out; set_attributes takes null and numbers too
            desc = refusal(data.answer(call, body, [] if field == "sign" else apps))
            if fits and desc is not None and re.match(re.escape(field) + " must ", desc):
                problems.append(f"{name}: {field} is in order but refused: {desc}")
            elif not fits and (desc is None or not names(desc, field)):
                problems.append(f"{name}: {field} is wrong, but the answer is {desc}; sent {str(body)[:300]}")
    assert not problems, "\n".join(problems[:20])
    assert count > 5


@pytest.mark.parametrize(
    ("interface", "path"), [("android", "/push"), ("android", "/timed_msg"), ("ios", "/push"), ("v2", "/v2/push")]
)
def test_an_idempotency_key_is_documented_where_it_has_effect(
    service: SampleService, data: ExampleData, interface: str, path: str
) -> None:
    call = Call(interface, "post", path)
    body = data.real(call.examples()["everyone"])
    key = {HEADER: f"{interface} {path}"}
    apps = data.apps(path, body)
    first, second = (service.send(interface, "POST", path, body, *apps, headers=key).json() for _ in range(2))
    assert first["result"] == second["result"] == 0
    documented = [header["name"] for header in call.document["paths"][path]["post"].get("parameters", ())]
    assert (HEADER in documented) == (first == second)
    assert {TIME_HEADER, NONCE_HEADER, SIGNATURE_HEADER} <= {*documented}
