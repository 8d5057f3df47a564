"""deploy/secrets.sh writes the secrets and the certificate that docker-compose.yml needs, or says why it cannot."""

import base64
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.programs import needed
from testkit.repository import ROOT

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def secrets(tmp_path: Path) -> Run:
    """Return a function that runs deploy/secrets.sh in an empty directory with these arguments."""
    (tmp_path / "deploy").mkdir()
    script = shutil.copy(ROOT / "deploy/secrets.sh", tmp_path / "deploy")

    def run(*arguments: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
        needed("openssl", path=path)
        return subprocess.run([script, *arguments], capture_output=True, text=True, env={"PATH": path})

    return run


def variables(directory: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (directory / ".env").read_text().splitlines())


def test_secrets_are_made_once(tmp_path: Path, secrets: Run) -> None:
    (tmp_path / ".env").write_text("GRAFANA_PASSWORD=mine\nCLICKHOUSE_PASSWORD=\nCARILLON_TIMEZONE=UTC")
    (tmp_path / ".env").chmod(0o644)
    assert secrets("push.example.com").returncode == 0
    pairs = variables(tmp_path)
    assert secrets("push.example.com").stdout == ""
    assert variables(tmp_path) == pairs
    required = set(re.findall(r"\$\{(\w+):\?", (ROOT / "docker-compose.yml").read_text()))
    assert pairs.keys() == required | {"CARILLON_TIMEZONE"}
    assert pairs["GRAFANA_PASSWORD"] == "mine"
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    made = {pairs[name] for name in required - {"GRAFANA_PASSWORD", "KAFKA_CLUSTER_ID"}}
    assert len(made) == 2
    assert all(re.fullmatch(r"[0-9a-f]{48}", password) for password in made)
    certificate = tmp_path / "certs/carillon.pem"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    assert certificate.stat().st_mode & 0o777 == (0o600 if os.getuid() == 0 else 0o644)


def test_the_id_of_kafkas_cluster_is_16_random_bytes_in_urlsafe_base64_without_padding(
    tmp_path: Path, secrets: Run
) -> None:
    secrets()
    first = variables(tmp_path)["KAFKA_CLUSTER_ID"]
    (tmp_path / ".env").unlink()
    secrets()
    second = variables(tmp_path)["KAFKA_CLUSTER_ID"]
    assert first != second
    for made in (first, second):
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", made)
        assert len(base64.urlsafe_b64decode(f"{made}==")) == 16


def test_kafkas_tools_do_not_take_its_cluster_id_for_an_option(tmp_path: Path, secrets: Run) -> None:
    (tmp_path / "openssl").write_text("#!/bin/sh\necho +/+/5A3hQZ2Lg7kq8yvZ5A==\n")
    (tmp_path / "openssl").chmod(0o755)
    secrets(path=f"{tmp_path}:{os.environ['PATH']}")
    assert variables(tmp_path)["KAFKA_CLUSTER_ID"] == "A_-_5A3hQZ2Lg7kq8yvZ5A"


@pytest.mark.parametrize(
    "name",
    ["localhost", "10.0.0.5", "2001:db8::7", pytest.param(f"{'a' * 40}.{'b' * 40}.example.com", id="long")],
)
def test_clients_find_the_name_or_address_in_the_certificate(name: str, tmp_path: Path, secrets: Run) -> None:
    assert secrets(name).returncode == 0
    pem = (tmp_path / "certs/carillon.pem").read_bytes()
    verify = ["openssl", "verify", "-CAfile", str(tmp_path / "certs/carillon.pem")]
    option = "-verify_ip" if name in ("10.0.0.5", "2001:db8::7") else "-verify_hostname"
    subprocess.run([*verify, option, name], input=pem, check=True, stdout=subprocess.DEVNULL)
    assert [path.name for path in (tmp_path / "certs").iterdir()] == ["carillon.pem"]


def test_without_openssl_nothing_is_written(tmp_path: Path, secrets: Run) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("dirname", "grep", "sed", "tail", "touch", "chmod"):
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    done = secrets(path=str(tools))
    assert (done.returncode, done.stdout) == (1, "")
    assert "needs openssl, which is not installed" in done.stderr
    assert not (tmp_path / ".env").exists()


def test_a_certificate_that_cannot_be_made_is_an_error_with_its_reason(tmp_path: Path, secrets: Run) -> None:
    done = secrets("999.1.1.1")
    assert done.returncode == 1
    assert "no certificate could be made for 999.1.1.1" in done.stderr
    assert "bad ip address" in done.stderr
    assert list((tmp_path / "certs").iterdir()) == []
