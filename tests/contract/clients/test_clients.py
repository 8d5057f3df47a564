"""The clients of docs/clients equal those in the docs, and the service accepts their signs."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from testkit.installation.app_server import AppCredentials
from testkit.installation.sample import SampleService
from testkit.repository import ROOT

CLIENTS = ROOT / "docs" / "clients"
CONTENT = '世界 😀 "quoted" back\\slash /slash/ <b>&amp; \u2028\u2029 \u007f \u0001\b\f\n\r\t \\u2028 é'
IGNORED = (
    '{"😀": 3, "～": 2, "ключ": 1, "": null, "</b>&": "<b>&amp;", "10": 1, "9": 2,'
    ' "a": [1.10, 1e3, -0.0, 1E-7, 12345678901234567890, 0.1, true],'
    ' "deep": [[{"z": {"é": 1, "e": 2}}, []], {}], "nothing": [null]}'
)
"""An unknown field that is signed: keys that UTF-16 sorts differently, numbers in unusual notations."""

COMMANDS = {
    "py": ["python3", CLIENTS / "sign_and_send.py"],
    "mjs": ["node", CLIENTS / "sign_and_send.mjs"],
    "go": ["go", "run", CLIENTS / "sign_and_send.go"],
    "php": ["php", CLIENTS / "sign_and_send.php"],
}


QUICK = [name for name in COMMANDS if name != "go"]
COMPILED = ["go"]
"""Clients whose first build compiles the standard library."""


@pytest.mark.parametrize("language", [*COMMANDS, "java"])
def test_the_docs_contain_the_client_unchanged(language: str) -> None:
    page = (ROOT / "docs" / "app-servers.md").read_text()
    source = (CLIENTS / f"sign_and_send.{language}").read_text()
    names = {"py": "python", "mjs": "javascript"}
    assert f"```{names.get(language, language)}\n{source}```\n" in page


@pytest.fixture(scope="module")
def app(service: SampleService) -> AppCredentials:
    """An app that refuses requests without a replay-safe signature."""
    created = service.installation.create_app("android")
    service.installation.carillon("app", "set", created.appkey, "--replay-safe", "required")
    return created


def request(app: AppCredentials) -> str:
    target = f'{{"userScope": 1, "appkey": {{"android": "{app.appkey}"}}}}'
    basic = json.dumps({"is_notif": 1, "content": CONTENT}, ensure_ascii=False)
    return f'{{"sendTo": {target}, "msgStyle": {{"basic": {basic}}}, "ignored": {IGNORED}}}'


@pytest.mark.parametrize("language", [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in COMPILED)])
def test_the_service_accepts_what_a_client_signs(service: SampleService, app: AppCredentials, language: str) -> None:
    program, *arguments = map(str, COMMANDS[language])
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    command = [program, *arguments, f"{service.urls['v2']}/v2/push", app.secret_key]
    text = accepted(service, run(command, request(app)))
    assert text.index('"～"') < text.index('"😀"')
    if language == "go":
        assert '"a":[1.10,1e3,-0.0,1E-7,12345678901234567890,0.1,true]' in text


@pytest.mark.parametrize("language", QUICK)
def test_a_client_returns_the_answer_of_another_http_status(service: SampleService, language: str) -> None:
    program, *arguments = map(str, COMMANDS[language])
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    printed = run([program, *arguments, f"{service.urls['v2']}/v2/nothing", service.android.secret_key], "{}")
    assert json.loads(printed) == {"result": 404, "desc": "no such path"}


@pytest.mark.long
def test_the_service_accepts_what_the_java_client_signs(
    service: SampleService, app: AppCredentials, tmp_path: Path
) -> None:
    if shutil.which("javac") is None:
        pytest.skip("javac is not installed")
    here = Path(__file__).parent / "Awkward.java"
    run(["javac", "-encoding", "UTF-8", "-d", str(tmp_path), str(CLIENTS / "sign_and_send.java"), str(here)])
    arguments = [f"{service.urls['v2']}/v2/push", app.appkey, app.secret_key]
    text = accepted(
        service,
        run(
            [
                "java",
                "-Dfile.encoding=UTF-8",
                "-Dsun.jnu.encoding=UTF-8",
                "-cp",
                str(tmp_path),
                "Awkward",
                *arguments,
                "世 😀",
            ]
        ),
    )
    assert text.index('"～"') < text.index('"😀"')
    assert '"a":[1.10,1E+3,0.0,7,0.1,true]' in text
    assert json.loads(run(["java", str(CLIENTS / "sign_and_send.java"), *arguments]))["result"] == 0


def run(command: Sequence[str], stdin: str = "") -> str:
    done = subprocess.run(command, input=stdin.encode(), capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def accepted(service: SampleService, printed: str) -> str:
    """Return the canonical text of the accepted push from the log."""
    answer = json.loads(printed)
    assert answer["result"] == 0, answer
    return str(service.audit(answer["id"])["request_json"])
