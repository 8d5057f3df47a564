"""The snippets of README.md and docs/: each is run as printed, here or by the test that `ELSEWHERE` names.

Here they run in a shell in a folder whose `.venv` is this environment, with the settings of an installation on free
ports; the default port in a URL is replaced by the installation's.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from testkit.apns.keys import pem
from testkit.delivery.fcm import ACCOUNT, account_file
from testkit.installation.processes import Installation
from testkit.installation.sample import SampleService
from testkit.programs import needed
from testkit.repository import ROOT
from testkit.waiting import once_available

SHOWN = ("mermaid", "text")
"""Languages of blocks that nobody runs."""

ELSEWHERE = {
    ("README.md", "git clone"): ".ci/run",
    ("README.md", "make test"): ".ci/run",
    ("docs/dashboards.md", "deploy/secrets.sh"): "tests/contract/packaging/test_secrets.py",
    ("docs/dashboards.md", "SELECT"): "tests/analytics/store/test_columns.py",
    ("docs/operators/kubernetes.md", "resources"): "tests/contract/kubernetes/test_roles.py",
    ("docs/operators/openid-connect.md", "{"): "tests/console/oidc/test_provider.py",
    ("docs/operators/backup.md", ""): "tests/journeys/test_backups.py",
    ("docs/legacy.md", ""): "tests/contract/clients/test_bodies.py",
    ("docs/app-servers.md", "{"): "tests/contract/clients/test_bodies.py",
    ("docs/app-servers.md", ""): "tests/contract/clients/test_clients.py",
    ("docs/devices.md", ""): "tests/contract/sdk/test_docs.py",
    ("docs/python-sdk.md", ""): "tests/contract/sdk/test_sdk_pages.py",
    ("docs/javascript-sdk.md", ""): "tests/contract/sdk/test_sdk_pages.py",
    ("docs/android-sdk.md", ""): "tests/contract/sdk/test_android.py",
    ("docs/kotlin-sdk.md", ""): "tests/contract/sdk/test_kotlin.py",
    ("docs/okhttp.md", ""): "tests/contract/sdk/test_kotlin_additions.py",
    ("docs/coroutines.md", ""): "tests/contract/sdk/test_kotlin_additions.py",
    ("docs/swift-sdk.md", ""): "tests/contract/sdk/test_iphone.py",
    ("docs/react-native.md", ""): "tests/contract/sdk/test_react_native.py",
    ("sdk/README.md", "import dev.carillon"): "tests/contract/sdk/test_kotlin.py",
    ("sdk/README.md", ""): "tests/contract/sdk/test_packages.py",
}
"""By page and beginning, the file that runs the blocks."""

BOUND_S = 120


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    found = re.findall(r"^ *```([^\n]*)\n(.*?)^ *```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [Block(page, language, text) for language, text in found]


def is_elsewhere(block: Block) -> bool:
    return any(block.page == page and block.text.startswith(start) for page, start in ELSEWHERE)


PAGES = ["README.md", "sdk/README.md", *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md")))]
HERE = [block for page in PAGES for block in blocks(page) if block.language not in SHOWN and not is_elsewhere(block)]
STARTING = [block for block in HERE if re.search(r"\bup$", block.text)]
FIRST_PUSH = [block.text for block in HERE if block.page == "README.md"]
KEYS = [block.text for block in HERE if block.page == "docs/operators/running.md"]
OPERATORS = [block.text for block in HERE if block.page == "docs/operators/apps.md"]
ROTATION = [block.text for block in HERE if block.page == "docs/operators/keys.md"]


def test_every_snippet_is_run_by_a_test() -> None:
    known = {*FIRST_PUSH, *OPERATORS, *ROTATION, *KEYS, *(block.text for block in STARTING)}
    assert [block for block in HERE if block.text not in known] == []
    assert all(block.language == "sh" for block in HERE)
    for page, start in ELSEWHERE:
        assert any(block.page == page and block.text.startswith(start) for block in blocks(page)), (page, start)
    for file in ELSEWHERE.values():
        assert (ROOT / file).exists(), file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


class Terminal:
    """Runs snippets in a folder, each in a shell of its own, with the settings of an installation."""

    def __init__(self, folder: Path, installation: Installation, **env: str) -> None:
        self._folder = folder
        self._url = installation.v2_url
        path = f"{Path(sys.prefix, 'bin')}:{os.environ['PATH']}"
        self._env = {**installation.env, **env, "PATH": path, "PYTHONUNBUFFERED": "1"}

    def run(self, snippet: str) -> str:
        for program in ("curl", "openssl"):
            if program in snippet:
                needed(program)
        command = ["sh", "-euc", self._here(snippet)]
        done = subprocess.run(
            command, cwd=self._folder, env=self._env, capture_output=True, text=True, timeout=BOUND_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def running(self, snippet: str) -> Iterator["subprocess.Popen[str]"]:
        """Run a snippet that does not end by itself."""
        command = ["sh", "-euc", self._here(snippet)]
        with subprocess.Popen(
            command, cwd=self._folder, env=self._env, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as program:
            try:
                yield program
            finally:
                os.killpg(program.pid, 9)

    def _here(self, snippet: str) -> str:
        return snippet.replace("http://127.0.0.1:8300", self._url)


def read_until(program: "subprocess.Popen[str]", pattern: str) -> None:
    """Read what the program prints up to a line that contains the pattern."""
    assert program.stdout is not None
    for line in program.stdout:
        if re.search(pattern, line):
            return
    raise AssertionError(f"the program has ended without printing {pattern}")


def test_the_first_push_of_the_readme(service: SampleService, folder: Path) -> None:
    device, push, audit = FIRST_PUSH
    terminal = Terminal(folder, service.installation)
    with terminal.running(device) as virtual:
        read_until(virtual, r'request="add_stags"')
        answer = json.loads(terminal.run(push))
        assert answer["result"] == 0, answer
        read_until(virtual, rf'msgid={answer["id"]}.*content="Hello from Carillon"')
        assert re.search(r'audience +stag "news"', once_available(lambda: terminal.run(audit)))


@pytest.mark.long
def test_the_snippets_of_the_operators_pages(service: SampleService, folder: Path) -> None:
    app = service.installation.create_app("ios")
    (folder / "AuthKey_ABC123DEFG.p8").write_text(pem())
    (folder / "service-account.json").write_bytes(account_file(ACCOUNT))
    terminal = Terminal(folder, service.installation, APPKEY=app.appkey)
    (rotation,) = ROTATION
    proofs, device, apns_key, web_push, fcm = OPERATORS
    assert "The new keys are in force since" in terminal.run(rotation)
    terminal.run(proofs)
    assert "accept: devices that have proven" in service.installation.carillon("app", "show", app.appkey)
    with terminal.running(device) as virtual:
        read_until(virtual, "welcome")
    terminal.run(apns_key)
    assert "ABC123DEFG" in service.installation.carillon("app", "show", app.appkey)
    android = service.installation.create_app("android")
    terminal = Terminal(folder, service.installation, APPKEY=android.appkey)
    terminal.run(web_push)
    assert "mailto:push@example.org" in service.installation.carillon("app", "show", android.appkey)
    assert "simulator" in terminal.run(fcm)
    assert ACCOUNT.client_email in service.installation.carillon("app", "show", android.appkey)


def test_the_keys_are_exported_as_the_page_on_running_says(service: SampleService, folder: Path) -> None:
    (export,) = KEYS
    Terminal(folder, service.installation).run(export)
    assert (folder / "device.key").stat().st_size
    assert (folder / "secrets.key").stat().st_size
    assert (folder / "persons.key").stat().st_size


@pytest.mark.long
@pytest.mark.parametrize("block", STARTING, ids=lambda block: block.page)
def test_a_snippet_that_starts_the_service(block: Block, folder: Path) -> None:
    """The checkout is on the path of Python, as it is where such a snippet is typed."""
    installation = Installation(folder / "data", None)
    console = installation.env_of("up")["CARILLON_CONSOLE_PORT"]
    terminal = Terminal(folder, installation, PYTHONPATH=str(ROOT), CARILLON_CONSOLE_PORT=console)
    with terminal.running(block.text) as program:
        read_until(program, "Carillon is ready")
