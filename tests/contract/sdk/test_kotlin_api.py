"""The public API of the Kotlin SDKs is that of the files under `sdk/jvm`: who changes it changes a file."""

import re

import pytest

from testkit.kotlin_api import BUILT, public_api
from testkit.kotlin_sdk import SOURCES
from tests.contract.sdk.test_android import BUILT_IN_TIME


@pytest.mark.long
@BUILT_IN_TIME
@pytest.mark.parametrize("module", BUILT)
def test_the_public_api_is_the_one_that_was_agreed_on(module: str) -> None:
    agreed = (SOURCES / module / "api.txt").read_text()
    assert public_api(module) == agreed, "if this is meant: .venv/bin/python -m testkit.kotlin_api"


@pytest.mark.parametrize("module", BUILT)
def test_every_public_class_of_the_sources_is_in_it(module: str) -> None:
    agreed = (SOURCES / module / "api.txt").read_text()
    sources = "".join(path.read_text() for path in (SOURCES / module / "src/main/kotlin").rglob("*.kt"))
    named = re.findall(r"^public (?:\w+ )*(?:class|interface|object) (\w+)", sources, re.MULTILINE)
    assert named
    for name in named:
        assert re.search(rf"(?:class|interface) [\w/$]*/{name} ", agreed), name
