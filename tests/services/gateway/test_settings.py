"""A wrong setting raises one line that names it."""

import resource
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from services.domain.settings import SettingsError, load
from services.gateway.settings import GatewaySettings
from testkit.certificates import Authority


def refused(**given: object) -> str:
    with pytest.raises(SettingsError) as error:
        load(GatewaySettings, {f"CARILLON_GATEWAY_{name}": str(value) for name, value in given.items()})
    line = str(error.value)
    assert "\n" not in line
    return line


def test_default_settings_are_valid() -> None:
    assert load(GatewaySettings, {}) == GatewaySettings()
    assert load(GatewaySettings, {"CARILLON_GATEWAY_MAX_CONNECTIONS": "1"}).gateway_max_connections == 1


@pytest.mark.parametrize(
    "name",
    [
        "MAX_CONNECTIONS",
        "ACK_S",
        "HEARTBEAT_S",
        "HEARTBEAT_MIN_S",
        "HEARTBEAT_MAX_S",
        "REGISTRATIONS_PER_S",
        "DRAIN_PER_S",
    ],
)
@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_numbers_must_be_positive_integers(name: str, value: str) -> None:
    assert refused(**{name: value}).startswith(f"CARILLON_GATEWAY_{name} is '{value}'")


def test_more_connections_than_open_files_are_refused() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    line = refused(MAX_CONNECTIONS=hard)
    assert line.startswith(f"CARILLON_GATEWAY_MAX_CONNECTIONS is {hard}")
    assert "ulimit" in line


def test_the_minimum_heartbeat_must_not_exceed_the_maximum() -> None:
    line = refused(HEARTBEAT_MIN_S=100, HEARTBEAT_MAX_S=99)
    assert "CARILLON_GATEWAY_HEARTBEAT_MIN_S is 100" in line
    assert "CARILLON_GATEWAY_HEARTBEAT_MAX_S (99)" in line


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    pair, other = authority.issue("one"), authority.issue("other")
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        serialization.load_pem_private_key(pair.key.read_bytes(), None).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"p")
        )
    )
    load(
        GatewaySettings,
        {"CARILLON_GATEWAY_TLS_CERT": str(pair.certificate), "CARILLON_GATEWAY_TLS_KEY": str(pair.key)},
    )
    assert "go together" in refused(TLS_CERT=pair.certificate)
    assert "go together" in refused(TLS_KEY=pair.key)
    for certificate, key in [
        (tmp_path / "missing", pair.key),
        (pair.certificate, tmp_path / "missing"),
        (pair.certificate, other.key),
        (pair.key, pair.key),
        (pair.certificate, encrypted),
        (tmp_path, pair.key),
    ]:
        line = refused(TLS_CERT=certificate, TLS_KEY=key)
        assert f"CARILLON_GATEWAY_TLS_CERT is '{certificate}'" in line
        assert f"CARILLON_GATEWAY_TLS_KEY '{key}'" in line
