"""The examples of docs/clients/prove_alias.* make proofs that the service accepts, with keys that openssl made."""

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.domain.identity import ProofError, public_key, verified
from testkit.programs import needed
from testkit.repository import ROOT

CLIENTS = ROOT / "docs" / "clients"
ALIAS = 'ali "ce" \\ /世界😀<é>'
APPKEY = "1234567890"
DEVICE = "a device"
JAVA = ["java", "-Dfile.encoding=UTF-8", "-Dsun.jnu.encoding=UTF-8"]
COMMANDS = {
    "py": [sys.executable],
    "mjs": ["node"],
    "php": ["php"],
    "go": ["go", "run"],
    "java": JAVA,
}
COMPILED = ["go", "java"]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the files of a private key and its public key, made by the commands of docs/operators/apps.md."""
    folder = tmp_path_factory.mktemp("keys")
    private, public = folder / "private.pem", folder / "public.pem"
    new = [
        needed("openssl"),
        "genpkey",
        "-algorithm",
        "EC",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-out",
        str(private),
    ]
    subprocess.run(new, check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)], check=True)
    return private, public


def run(language: str, arguments: Sequence[str]) -> str:
    program, *options = COMMANDS[language]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    command = [program, *options, str(CLIENTS / f"prove_alias.{language}"), *arguments]
    done = subprocess.run(command, capture_output=True, timeout=300, check=False, env=None)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@pytest.mark.parametrize(
    "language", [name if name not in COMPILED else pytest.param(name, marks=pytest.mark.long) for name in COMMANDS]
)
def test_the_service_accepts_the_proofs_of_an_example(keys: tuple[Path, Path], language: str) -> None:
    private, public = keys
    accepted = [public_key(public.read_text())]
    proof = run(language, [str(private), APPKEY, ALIAS])
    now_s = time.time()
    claims = verified(proof, accepted, APPKEY, DEVICE, now_s)
    assert (claims.sub, claims.aud, claims.token) == (ALIAS, APPKEY, None)
    assert now_s + 3500 < claims.exp <= now_s + 3600
    for _ in range(3 if language not in COMPILED else 1):  # numbers of a signature that begin with zeros are rare
        proof = run(language, [str(private), APPKEY, ALIAS, DEVICE])
        assert verified(proof, accepted, APPKEY, DEVICE, time.time()).token == DEVICE
        with pytest.raises(ProofError, match="another device"):
            verified(proof, accepted, APPKEY, "another device", time.time())
        with pytest.raises(ProofError, match="another app"):
            verified(proof, accepted, "1234567891", DEVICE, time.time())


def test_every_example_is_named_in_the_docs() -> None:
    page = (ROOT / "docs" / "app-servers.md").read_text()
    assert all(f"clients/prove_alias.{language}" in page for language in COMMANDS)
