"""Settings: every wrong value is one line that names its variable."""

import os
from pathlib import Path
from typing import Annotated
from zoneinfo import TZPATH

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization

from services.domain import settings as config
from services.domain.settings import Port, Settings, SettingsError, addresses, environment, load
from services.log.kafka.security import PLAINTEXT, Login
from services.net.rpc.tls import Tls
from testkit.certificates import Authority


class ExampleSettings(Settings, frozen=True, kw_only=True):
    listener_port: Port = 8300
    share: bool = False
    delay_s: Annotated[float, msgspec.Meta(ge=0)] = 1.5


def test_without_variables_the_defaults_hold() -> None:
    settings = load(Settings, {})
    assert settings == Settings()
    assert (settings.data, settings.partitions, settings.console_port) == (Path("data"), 32, 8080)
    assert settings.kafka_bootstrap is None


def test_variables_are_read_as_their_types() -> None:
    env = {
        "CARILLON_LISTENER_PORT": " 9000 ",
        "CARILLON_SHARE": "true",
        "CARILLON_DELAY_S": "0.25",
        "CARILLON_HOST": "::",
    }
    settings = load(ExampleSettings, env)
    assert (settings.listener_port, settings.share, settings.delay_s, settings.host) == (9000, True, 0.25, "::")


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_variable_counts_as_unset(empty: str) -> None:
    assert load(Settings, {"CARILLON_PARTITIONS": empty, "CARILLON_KAFKA_BOOTSTRAP": empty}) == Settings()


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"LISTENER_PORT": "eighty"}, "LISTENER_PORT is 'eighty': use a whole number"),
        ({"LISTENER_PORT": "65536"}, "LISTENER_PORT is '65536': use a whole number <= 65535"),
        ({"LISTENER_PORT": "-1"}, "LISTENER_PORT is '-1'"),
        ({"LISTENER_PORT": "8300.5"}, "LISTENER_PORT is '8300.5'"),
        ({"SHARE": "perhaps"}, "SHARE is 'perhaps': use true or false"),
        ({"DELAY_S": "soon"}, "DELAY_S is 'soon'"),
        ({"DELAY_S": "-0.1"}, "DELAY_S is '-0.1': use a number >= 0"),
        ({"PARTITIONS": "0"}, "PARTITIONS is '0'"),
        ({"PARTITIONS": "1025"}, "PARTITIONS is '1025'"),
        ({"KAFKA_REPLICATION": "0"}, "KAFKA_REPLICATION is '0'"),
        ({"SNAPSHOT_S": "0"}, "SNAPSHOT_S is '0'"),
        ({"SHARD": "-1"}, "SHARD is '-1'"),
        ({"SHARD": "1"}, "SHARD is 1, but must be below CARILLON_SHARDS (1)"),
        ({"SHARD": "3", "SHARDS": "3"}, "SHARD is 3"),
        ({"SHARDS": "0"}, "SHARDS is '0'"),
        ({"SHARDS": "5", "PARTITIONS": "4"}, "SHARDS is 5, more than CARILLON_PARTITIONS (4)"),
        ({"LOG_LEVEL": "LOUD"}, "LOG_LEVEL is 'LOUD'"),
        ({"TIMEZONE": "Middle/Earth"}, "TIMEZONE is 'Middle/Earth'"),
        ({"TIMEZONE": "/etc/passwd"}, "TIMEZONE is '/etc/passwd'"),
        ({"TIMEZONE": "../../etc/passwd"}, "TIMEZONE is '../../etc/passwd'"),
        ({"TIMEZONE": "Asia"}, "TIMEZONE is 'Asia'"),
        ({"TLS_CERT": "a.pem"}, "TLS_CERT, CARILLON_TLS_KEY and CARILLON_TLS_AUTHORITY go together"),
        ({"TLS_KEY": "a", "TLS_AUTHORITY": "b"}, "TLS_CERT, CARILLON_TLS_KEY and CARILLON_TLS_AUTHORITY go together"),
        ({"TLS_CERT": "/a", "TLS_KEY": "/b", "TLS_AUTHORITY": "/c"}, "TLS_CERT is '/a', which cannot be read"),
    ],
    ids=str,
)
def test_a_wrong_value_is_one_line_that_names_the_setting(env: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load(ExampleSettings, {f"CARILLON_{name}": value for name, value in env.items()})
    assert str(raised.value).startswith(f"CARILLON_{named}")
    assert "\n" not in str(raised.value)


def test_the_environment_overrides_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text('CARILLON_HOST="0.0.0.0"\nCARILLON_PARTITIONS=8  # few\nCARILLON_BARE\n')
    monkeypatch.setenv("CARILLON_PARTITIONS", "16")
    monkeypatch.delenv("CARILLON_HOST", raising=False)
    settings = load(Settings, environment())
    assert (settings.host, settings.partitions) == ("0.0.0.0", 16)


def test_a_file_that_is_no_text_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_bytes(b"CARILLON_HOST=\xff\xfe\n")
    with pytest.raises(SettingsError, match=rf"\.env in {tmp_path}"):
        environment()


def test_the_environment_is_not_changed_by_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("CARILLON_ONLY_HERE=1\n")
    assert environment()["CARILLON_ONLY_HERE"] == "1"
    assert "CARILLON_ONLY_HERE" not in os.environ


@pytest.mark.parametrize("name", ["Europe/Berlin", ":Asia/Shanghai", "UTC"])
def test_the_host_names_its_zone_in_tz(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", name)
    assert load(Settings, {}).zone().key == name.lstrip(":")


def test_the_setting_overrides_the_hosts_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    assert load(Settings, {"CARILLON_TIMEZONE": "Asia/Shanghai"}).zone().key == "Asia/Shanghai"


def zone_file(name: str) -> Path:
    return next(file for directory in TZPATH if (file := Path(directory) / name).is_file())


@pytest.mark.parametrize("through_tz", [False, True], ids=["by itself", "TZ=:/etc/localtime"])
@pytest.mark.parametrize("copied", [False, True], ids=["link", "copy"])
def test_the_host_keeps_its_zone_as_a_link_or_as_a_copy(
    copied: bool, through_tz: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    localtime = tmp_path / "localtime"
    if copied:
        localtime.write_bytes(zone_file("Asia/Kathmandu").read_bytes())
    else:
        localtime.symlink_to(zone_file("Asia/Kathmandu"))
    monkeypatch.delenv("TZ", raising=False)
    monkeypatch.setattr(config, "LOCALTIME", str(localtime))
    if through_tz:
        monkeypatch.setenv("TZ", f":{localtime}")
    assert load(Settings, {}).zone().key in ("Asia/Kathmandu", "Asia/Katmandu")


def test_a_host_without_a_zone_is_at_utc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TZ", raising=False)
    monkeypatch.setattr(config, "LOCALTIME", str(tmp_path / "missing"))
    assert load(Settings, {}).zone().key == "UTC"


def test_a_host_zone_without_a_name_asks_for_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TZ", raising=False)
    (tmp_path / "localtime").write_bytes(b"TZif of nowhere")
    monkeypatch.setattr(config, "LOCALTIME", str(tmp_path / "localtime"))
    with pytest.raises(SettingsError, match=r"^CARILLON_TIMEZONE must be set"):
        load(Settings, {})


def test_addresses_are_a_list_in_order() -> None:
    env = {"CARILLON_REGISTRY_ADDR": " registry-0:7401, 10.0.0.2:7401 ,[::1]:7401,unix:/run/carillon/r.sock,"}
    assert addresses("registry", env) == [
        "registry-0:7401",
        "10.0.0.2:7401",
        "[::1]:7401",
        "unix:/run/carillon/r.sock",
    ]
    assert addresses("targeting", env) == []
    assert addresses("registry", {"CARILLON_REGISTRY_ADDR": " "}) == []


@pytest.mark.parametrize(
    "wrong", ["registry", "registry:", ":7401", "registry:port", "registry:70000", "http://r:7401"]
)
def test_an_address_without_host_and_port_is_one_clear_line(wrong: str) -> None:
    with pytest.raises(SettingsError, match=r"^CARILLON_REGISTRY_ADDR is ") as raised:
        addresses("registry", {"CARILLON_REGISTRY_ADDR": f"good:7401,{wrong}"})
    assert repr(wrong) in str(raised.value)


def test_tls_is_all_or_nothing(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("TLS_CERT", "TLS_KEY", "TLS_AUTHORITY")}
    for file in files.values():
        file.write_text("PEM")
    settings = load(Settings, {f"CARILLON_{name}": str(file) for name, file in files.items()})
    assert settings.tls() == Tls(*files.values())
    assert load(Settings, {}).tls() is None


def test_a_sharded_instance_has_a_state_directory_of_its_own() -> None:
    assert Settings(data_dir="/d").state_dir("registry") == Path("/d/registry")
    assert Settings(data_dir="/d", shard=1, shards=3).state_dir("registry") == Path("/d/registry-1-of-3")


def test_the_master_key_is_in_the_data_directory_by_default() -> None:
    assert Settings(data_dir="/d").key_file == Path("/d/master.key")
    assert Settings(data_dir="/d", master_key_file="/run/secrets/key").key_file == Path("/run/secrets/key")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Files that Kafka's settings may name: a certificate with its key, another key, an authority, passwords."""
    own, other = Authority(tmp_path / "own").issue("carillon"), Authority(tmp_path / "other").issue("carillon")
    encrypted = tmp_path / "encrypted.key"
    key = serialization.load_pem_private_key(own.key.read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    encrypted.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    texts = {"password": b"open sesame\n", "empty": b"\n", "two": b"open\nsesame\n", "binary": b"\xff\xfecanary"}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text)
    pems = {"cert": own.certificate, "key": own.key, "other_key": other.key, "authority": own.authority}
    passwords = {name: tmp_path / name for name in texts}
    everything = {**pems, **passwords, "encrypted": encrypted, "none": tmp_path / "none"}
    return {name: str(file) for name, file in everything.items()}


def kafka_env(files: dict[str, str], settings: str) -> dict[str, str]:
    """Return settings from words NAME=VALUE without CARILLON_KAFKA_; a value may be the name of a file."""
    pairs = (word.split("=") for word in settings.split())
    return {f"CARILLON_KAFKA_{name}": files.get(value, value) for name, value in pairs}


LOGIN = "SASL_MECHANISM=PLAIN SASL_USER=u SASL_PASSWORD_FILE=password"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("SECURITY_PROTOCOL=TLS", "SECURITY_PROTOCOL is 'TLS'; use PLAINTEXT, SSL"),
        ("TLS_AUTHORITY=authority", "TLS_AUTHORITY is set, but CARILLON_KAFKA_SECURITY_PROTOCOL is PLAINTEXT"),
        (f"SECURITY_PROTOCOL=SASL_PLAINTEXT TLS_CERT=cert TLS_KEY=key {LOGIN}", "TLS_CERT is set, but"),
        ("SECURITY_PROTOCOL=SSL SASL_USER=u", "SASL_USER is set, but"),
        ("SECURITY_PROTOCOL=SSL TLS_CERT=cert", "TLS_CERT and CARILLON_KAFKA_TLS_KEY go together"),
        ("SECURITY_PROTOCOL=SSL TLS_CERT=cert TLS_KEY=other_key", "TLS_KEY"),
        ("SECURITY_PROTOCOL=SSL TLS_CERT=cert TLS_KEY=encrypted", "TLS_KEY"),
        ("SECURITY_PROTOCOL=SSL TLS_AUTHORITY=none", "TLS_AUTHORITY"),
        ("SECURITY_PROTOCOL=SSL TLS_AUTHORITY=password", "TLS_AUTHORITY"),
        ("SECURITY_PROTOCOL=SASL_SSL", "SASL_MECHANISM is not set; use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ("SECURITY_PROTOCOL=SASL_SSL SASL_MECHANISM=GSSAPI", "SASL_MECHANISM is 'GSSAPI'"),
        ("SECURITY_PROTOCOL=SASL_SSL SASL_MECHANISM=PLAIN SASL_USER=u", "SASL_PASSWORD_FILE are needed"),
        *(
            (
                f"SECURITY_PROTOCOL=SASL_SSL SASL_MECHANISM=PLAIN SASL_USER=u SASL_PASSWORD_FILE={name}",
                "SASL_PASSWORD_FILE is ",
            )
            for name in ("none", "empty", "two", "binary")
        ),
    ],
)
def test_invalid_kafka_security_is_refused(files: dict[str, str], settings: str, why: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load(Settings, kafka_env(files, settings))
    assert f"CARILLON_KAFKA_{why}" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not any(word in str(raised.value) for word in ("sesame", "canary"))


def test_valid_kafka_security(files: dict[str, str]) -> None:
    assert Settings().kafka_security() == PLAINTEXT
    everything = f"SECURITY_PROTOCOL=SASL_SSL TLS_AUTHORITY=authority TLS_CERT=cert TLS_KEY=key {LOGIN}"
    found = load(Settings, kafka_env(files, everything)).kafka_security()
    assert (found.protocol, found.login) == ("SASL_SSL", Login("PLAIN", "u", "open sesame"))
    assert found.tls is not None
    assert (found.tls.check_hostname, len(found.tls.get_ca_certs())) == (True, 1)
    assert "sesame" not in f"{found!r} {found}"
    plain = load(Settings, kafka_env(files, f"SECURITY_PROTOCOL=SASL_PLAINTEXT {LOGIN}")).kafka_security()
    assert (plain.tls, plain.login) == (None, found.login)
