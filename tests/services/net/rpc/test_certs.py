"""`carillon certs`: roles call each other over TLS with its certificates, which it renews in time."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509 import load_pem_x509_certificate, load_pem_x509_certificates

from carillon.commands import certs as command
from carillon.commands import certs as files
from carillon.commands.certs import CertificateTerms, WantedCertificate, update
from carillon.main import main
from carillon.roles import ROLES
from services.domain.call_permissions import PERMISSIONS
from services.errors import CarillonError, PermissionDeniedError
from services.net.rpc.authority import new_key
from services.net.rpc.server import serve
from services.net.rpc.tls import Pems, Tls
from testkit.certificates import Authority
from tests.services.net.rpc.test_caller import create_app, free_address, new_registry, running

NOW = datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
TERMS = CertificateTerms(days=365, renew_days=30)
PRIVATE = new_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
EDGE = WantedCertificate("edge", "edge", "edge")


def run(folder: Path, *options: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run the command; return its outcomes by name."""
    done = CliRunner().invoke(main, ["certs", str(folder), "--json", *options], env=env)
    assert done.exit_code == 0, done.output
    return {line["name"]: line for line in map(json.loads, done.output.splitlines())}


def actions(folder: Path, now: datetime.datetime, *wanted: WantedCertificate) -> dict[str, str]:
    return {outcome.name: outcome.action for outcome in update(folder, wanted or [EDGE], now, TERMS)}


def tls(folder: Path) -> Tls:
    found = Tls(folder / "tls.crt", folder / "tls.key", folder / "ca.crt")
    Pems(*(path.read_bytes() for path in (found.certificate, found.key, found.authority))).check()
    return found


async def test_roles_call_each_other_with_the_certificates(tmp_path: Path) -> None:
    made = run(tmp_path, "--operator", "alice")
    assert made.keys() == {files.AUTHORITY, "operator-alice", *ROLES}
    assert {line["action"] for line in made.values()} == {"issued"}
    registry, address = new_registry(), free_address()
    server = serve([address], tls(tmp_path / "registry"), permissions=PERMISSIONS)
    async with running(registry, server):
        await create_app(address, tls(tmp_path / "operator-alice"))
        with pytest.raises(PermissionDeniedError, match="gateway"):
            await create_app(address, tls(tmp_path / "gateway"))
    assert [origin.address for origin in registry.origins] == ["CN=alice"]


def test_what_it_writes_is_for_its_owner_alone(tmp_path: Path) -> None:
    run(tmp_path, "--operator", "alice")
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 2 + 3 * (1 + len(ROLES))
    assert {path.stat().st_mode & 0o777 for path in written} == {0o600}


def test_hosts_come_from_the_settings_and_existing_files_are_kept(tmp_path: Path) -> None:
    addresses = "registry-0.registry:7401,10.0.0.7:7401,[fd00::7]:7401"
    made = run(tmp_path, "--host", "gateway=gateway.example", env={"CARILLON_REGISTRY_ADDR": addresses})
    assert made["registry"]["hosts"] == ["10.0.0.7", "fd00::7", "registry-0.registry"]
    assert made["gateway"]["hosts"] == ["gateway.example"]
    assert made["edge"]["hosts"] == []
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = run(tmp_path, env={"CARILLON_REGISTRY_ADDR": "10.0.0.7:7401"})
    assert {line["action"] for line in again.values()} == {"kept"}
    assert {path: path.read_bytes() for path in before} == before
    more = run(tmp_path, "--host", "edge=edge.example", env={"CARILLON_REGISTRY_ADDR": "10.0.0.7:7401"})
    assert {name: line["hosts"] for name, line in more.items() if line["action"] == "renewed"} == {
        "edge": ["edge.example"]
    }


def test_an_address_in_another_form_of_ipv6_is_the_same_host(tmp_path: Path) -> None:
    for action in ("issued", "kept"):
        edge = run(tmp_path, "--host", "edge=FD00:0::1", "--host", "edge=fd00::1")["edge"]
        assert (edge["action"], edge["hosts"]) == (action, ["fd00::1"])


def test_certificates_are_renewed_before_they_end_and_keys_stay(tmp_path: Path) -> None:
    assert actions(tmp_path, NOW, EDGE, files.operator("bob")) == dict.fromkeys(
        ("authority", "edge", "operator-bob"), "issued"
    )
    key, expired = (tmp_path / "edge/tls.key").read_bytes(), (tmp_path / "edge/tls.crt").read_bytes()
    assert set(actions(tmp_path, NOW + 335 * DAY).values()) == {"kept"}
    later = NOW + 336 * DAY
    assert actions(tmp_path, later) == {"authority": "kept", "edge": "renewed", "operator-bob": "renewed"}
    assert (tmp_path / "edge/tls.key").read_bytes() == key
    renewed = load_pem_x509_certificate((tmp_path / "edge/tls.crt").read_bytes())
    assert renewed.not_valid_after_utc == later + 365 * DAY
    assert (tmp_path / "edge/tls.crt").read_bytes() != expired
    tls(tmp_path / "edge")


def test_the_authority_is_renewed_in_time_and_others_beside_it_stay(tmp_path: Path) -> None:
    actions(tmp_path, NOW)
    trusted = tmp_path / "edge/ca.crt"
    issued = load_pem_x509_certificate((tmp_path / "edge/tls.crt").read_bytes())
    other = Authority(tmp_path / "other").file.read_bytes()
    trusted.write_bytes(trusted.read_bytes() + other)
    assert actions(tmp_path, NOW + 3255 * DAY)["authority"] == "kept"
    assert actions(tmp_path, NOW + 3256 * DAY)["authority"] == "renewed"
    authority = load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    assert load_pem_x509_certificates(trusted.read_bytes()) == [authority, load_pem_x509_certificate(other)]
    issued.verify_directly_issued_by(authority)


def test_a_kill_between_key_and_certificate_is_made_good(tmp_path: Path) -> None:
    actions(tmp_path, NOW)
    key = (tmp_path / "edge/tls.key").read_bytes()
    for name in ("ca.crt", "edge/tls.crt", "edge/ca.crt"):
        (tmp_path / name).unlink()
    assert actions(tmp_path, NOW) == {"authority": "issued", "edge": "issued"}
    assert (tmp_path / "edge/tls.key").read_bytes() == key
    tls(tmp_path / "edge")


@pytest.mark.parametrize(
    ("spoilt", "content", "problem"),
    [
        ("edge/tls.crt", b"no", "edge/tls.crt is no certificate"),
        ("edge/tls.key", b"no", "edge/tls.key is no private key"),
        ("edge/tls.key", None, "edge/tls.key is missing, the key of .*edge/tls.crt"),
        pytest.param("edge/tls.key", PRIVATE, "edge/tls.key is not the key of .*edge/tls.crt", id="another key"),
        ("ca.key", None, "ca.key is missing, the key of .*ca.crt"),
        ("ca.crt", b"no", "ca.crt is no certificate"),
    ],
)
def test_files_that_do_not_fit_are_named_and_stay(
    tmp_path: Path, spoilt: str, content: bytes | None, problem: str
) -> None:
    actions(tmp_path, NOW)
    (tmp_path / spoilt).unlink()
    if content is not None:
        (tmp_path / spoilt).write_bytes(content)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(CarillonError, match=problem):
        actions(tmp_path, NOW)
    assert {path: path.read_bytes() for path in before} == before


def test_a_certificate_of_another_authority_is_not_replaced(tmp_path: Path) -> None:
    actions(tmp_path / "ours", NOW)
    actions(tmp_path / "theirs", NOW)
    (tmp_path / "ours/edge").rename(tmp_path / "former")
    (tmp_path / "theirs/edge").rename(tmp_path / "ours/edge")
    with pytest.raises(CarillonError, match=r"is of another authority: move .*/ours/edge away"):
        actions(tmp_path / "ours", NOW)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--operator", "../x"], "--operator is '../x'"),
        (["--host", "edge"], "--host is 'edge'; use ROLE=HOST"),
        (["--host", "nobody=here"], "--host is 'nobody=here'; use ROLE=HOST with one of the roles registry"),
        (["--days", "30"], "--renew-days is 30, but must be below --days"),
    ],
)
def test_wrong_options_are_explained_and_make_nothing(tmp_path: Path, options: list[str], problem: str) -> None:
    done = CliRunner().invoke(command.certs, [str(tmp_path / "new"), *options])
    assert done.exit_code == 2
    assert problem in " ".join(done.output.split())
    assert not (tmp_path / "new").exists()
