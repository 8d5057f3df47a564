"""The programs that the console shows beside a composed push send exactly this push to a real edge."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from console.send.snippets import snippets
from testkit.installation.sample import SampleService
from testkit.programs import needed
from tests.contract.clients.test_clients import CONTENT

COMMANDS: Mapping[str, tuple[str, Sequence[str]]] = {
    "curl": ("push.sh", ["bash"]),
    "python": ("push.py", ["python3"]),
    "node": ("push.mjs", ["node"]),
    "php": ("push.php", ["php"]),
    "java": ("Push.java", ["java"]),
    "go": ("push.go", ["go", "run"]),
}
SHORT = ["curl", "python"]
"""What `make test` runs; the code that signs is tested in every language by `test_clients`."""


def canonical(service: SampleService, content: str) -> str:
    ios = service.ios[0].appkey
    body = {
        "msgStyle": {"basic": {"content": content, "is_notif": 1}},
        "sendTo": {"appkey": {"android": service.android.appkey, "ios": ios}, "userScope": 0},
    }
    return json.dumps(body, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize(
    "language",
    [pytest.param(name, marks=[pytest.mark.long] * (name not in SHORT)) for name in COMMANDS],
)
def test_the_program_sends_the_push(service: SampleService, tmp_path: Path, language: str) -> None:
    name, command = COMMANDS[language]
    needed("curl" if language == "curl" else command[0])
    text = canonical(service, f"it's {CONTENT} $HOME `id` %s \\' \\u4e16 {language}")
    url = f"{service.urls['v2']}/v2/push"
    (code,) = [snippet.code for snippet in snippets(text, url, 2) if snippet.language == language]
    file = tmp_path / name
    file.write_text(code)
    secret = service.android.secret_key + service.ios[0].secret_key
    done = subprocess.run(
        [*command, str(file)],
        env={**os.environ, "CARILLON_SECRET": secret},
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    answer = json.loads(done.stdout)
    assert answer["result"] == 0, answer
    assert service.audit(answer["android"]["id"])["request_json"] == text
