"""The bodies of requests in the docs: a running service accepts each, with its own apps, devices and times in place."""

import json
import re
from typing import NamedTuple, cast

import pytest

from testkit.installation.sample import Json, SampleService
from testkit.repository import ROOT
from testkit.waiting import blocking_until
from tests.contract.openapi.test_limits import ExampleData


class Body(NamedTuple):
    """A body on a page, with the request that the sentence before it names."""

    interface: str
    method: str
    path: str
    text: str


def bodies(page: str, interface: str, section: str) -> list[Body]:
    """Return the JSON blocks in a section of a page."""
    text = (ROOT / "docs" / page).read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"by `(POST|DELETE) (/\S+)`:\n\n```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == text.count("```json\n") > 0
    return [Body(interface, *block) for block in blocks]


BODIES = [
    *bodies("app-servers.md", "v2", "Other calls"),
    *bodies("legacy.md", "android", "Android"),
    *bodies("legacy.md", "ios", "iOS"),
]


@pytest.fixture(scope="module")
def data(service: SampleService) -> ExampleData:
    data = ExampleData(service)
    data.create_examples_targets()
    return data


@pytest.mark.parametrize("body", BODIES, ids=lambda body: f"{body.interface} {body.method} {body.path}")
def test_the_service_accepts_the_body(service: SampleService, data: ExampleData, body: Body) -> None:
    fields = data.real(json.loads(body.text))

    def sent() -> Json | None:
        """Return the answer; None while analytics has not read the newest records, and so the service has none."""
        answer = service.send(body.interface, body.method, body.path, fields, *data.apps(body.path, fields))
        return None if answer.status_code == 503 else cast(Json, answer.json())

    answer = blocking_until(sent)
    assert answer is not None
    assert answer["result"] == 0, answer
