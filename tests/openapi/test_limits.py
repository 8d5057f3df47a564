"""Each document against its door: every limit at its edge and one past it, through HTTP."""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from edge.openapi import android, device, ios, v2_push_examples
from edge.openapi.documents import DOCUMENTS
from tests.journeys.installation import TestApp
from tests.openapi.variants import Json, Variants
from tests.support.service import DOORS, Service

_PROOF = re.compile(r"^(sign|key|token|(sendTo\.)?appkey\b.*)$")
"""Fields that say who sends a request: a wrong one is answered as a wrong sign is."""

OPERATIONS = [
    pytest.param(door, method, path, id=f"{door} {method} {path}")
    for door in DOORS
    for path, methods in DOCUMENTS[door]()["paths"].items()
    for method in methods
]


class Stage:
    """Puts the service's own apps, devices and times where the documents' examples have made-up ones."""

    def __init__(self, service: Service) -> None:
        self._service = service
        soon = datetime.now(ZoneInfo("Asia/Shanghai")) + timedelta(hours=1)
        key = service.ios_devices[0]["key"]
        self._real = {
            android.APPKEY: service.android.appkey,
            ios.APPKEY: service.ios[0].appkey,
            v2_push_examples.SECOND_IOS: service.ios[1].appkey,
            android.TOKEN: service.device["token"],
            device.KEY: key,
            android.SEND_TIME: soon.strftime("%Y-%m-%d %H:%M"),
        }

    def real(self, value: Any) -> Any:
        match value:
            case dict():
                return {self.real(key): self.real(inner) for key, inner in value.items()}
            case list():
                return [self.real(inner) for inner in value]
            case _:
                return self._real.get(value, value) if isinstance(value, str) else value

    def apps(self, path: str, body: Json) -> list[TestApp]:
        """Who signs: the apps that a request names, in order; none for devices."""
        if path == "/device/v1":
            return []
        named = body["sendTo"]["appkey"] if "sendTo" in body else body["appkey"]
        keys: list[Any] = [named.get("android"), named.get("ios")] if isinstance(named, dict) else [named]
        flat = [key for each in keys for key in (each if isinstance(each, list) else [each])]
        known = {app.appkey: app for app in (self._service.android, *self._service.ios)}
        return [known[key] for key in flat if key in known]

    def answer(self, door: str, method: str, path: str, body: Json, apps: list[TestApp], sign: bool = True) -> Json:
        response = self._service.send(door, method.upper(), path, body, *(apps if sign else ()))
        assert response.status_code == 200, response.text
        content: Json = response.json()
        return content


def operation(door: str, method: str, path: str) -> tuple[Json, Json]:
    """The document and the operation in it."""
    document = DOCUMENTS[door]()
    return document, document["paths"][path][method]


def examples(document: Json, method: str, path: str) -> Iterator[tuple[str, Json, Json]]:
    body = document["paths"][path][method]["requestBody"]["content"]["application/json"]
    for name, example in body["examples"].items():
        yield name, body["schema"], example["value"]


@pytest.fixture(scope="module")
def stage(service: Service) -> Stage:
    return Stage(service)


def refusal(answer: Json) -> str | None:
    """What is wrong with a request, by its answer; None when nothing is."""
    code = answer.get("result", answer.get("code"))
    assert code in (None, 0, 400, 401), answer
    return str(answer["desc"]).removeprefix("input error: ") if code else None


def names(desc: str, path: str) -> bool:
    """Whether an error is about this field, or about what it stands in."""
    steps = re.findall(r"[^.\[]+|\[\d+\]", path)
    places = ["".join(s if s.startswith("[") else f".{s}" for s in steps[:end]).lstrip(".") for end in range(1, len(steps) + 1)]
    if desc in ("sign not correct", "unauthorized"):
        return _PROOF.search(path) is not None
    return any(re.match(re.escape(place) + r"(?![\w-])", desc) for place in places)


@pytest.mark.parametrize(("door", "method", "path"), OPERATIONS)
def test_the_door_enforces_what_its_document_says(stage: Stage, door: str, method: str, path: str) -> None:
    document, _ = operation(door, method, path)
    variants = Variants(document)
    problems = []
    count = 0
    for name, schema, example in examples(document, method, path):
        whole = stage.real(example)
        apps = stage.apps(path, whole)
        for field, body, fits in variants.of(schema, whole):
            count += 1
            desc = refusal(stage.answer(door, method, path, body, apps, sign=field != "sign"))
            if fits and desc is not None and re.match(re.escape(field) + r" (?!is missing)", desc):
                problems.append(f"{name}: {field} is in order but refused: {desc}")
            elif not fits and (desc is None or not names(desc, field)):
                problems.append(f"{name}: {field} is wrong, but the answer is {desc}; sent {str(body)[:300]}")
    assert not problems, "\n".join(problems)
    assert count > 5
