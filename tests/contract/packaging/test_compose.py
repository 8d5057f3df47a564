"""docker-compose.yml agrees with the settings, ports, commands and files that exist."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import click
import msgspec
import pytest
from click.testing import CliRunner
from cryptography.x509 import (
    Certificate,
    SubjectAlternativeName,
    UniformResourceIdentifier,
    load_pem_x509_certificate,
)

from carillon.commands.acls import PASSWORD_FILE
from carillon.main import main
from carillon.roles import ROLES, role_definition
from services.domain.master_key import KeyPurpose, OptionalPurpose, load_keys, read_keys
from services.domain.role_context import DEFAULT_ADDRESSES
from services.domain.settings import PREFIX, load
from services.domain.signing_keys import SIGNERS, load_signing_keys
from services.net.http.operations import Operations
from services.net.rpc.authority import hosts_of
from services.net.rpc.caller import ROLE_URI
from testkit.persons import READERS_AND_WRITERS
from testkit.repository import ROOT
from tests.contract.packaging.container_files import (
    COMPOSE,
    ONCE,
    OURS,
    SERVICES,
    THEIRS,
    addresses,
    configs,
    dockerfile,
    environment,
    mounts,
    settings,
)


def test_services_and_roles_are_the_same() -> None:
    assert ONCE.keys() == {"keys", "certs", "kafka-users", "operator"}
    assert OURS.keys() == ROLES.keys()
    for name, service in OURS.items():
        assert service["command"] == ["serve", name]
        command, *arguments = service["command"]
        subcommand = main.get_command(click.Context(main), command)
        assert subcommand is not None
        subcommand.make_context(command, arguments)


@pytest.mark.parametrize("name", OURS)
def test_every_setting_exists_and_has_an_accepted_value(name: str) -> None:
    fields = {PREFIX + field.name.upper() for field in msgspec.structs.fields(role_definition(name).settings)}
    known = fields | {f"{PREFIX}{role.upper()}_ADDR" for role in DEFAULT_ADDRESSES}
    assert {key for key in environment(name) if key.startswith(PREFIX)} <= known
    loaded = settings(name)
    assert loaded.host == "0.0.0.0"
    assert loaded.kafka_bootstrap


def test_variables_of_the_env_file_are_used_and_documented() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    head, _, body = text.partition("\nname: ")
    used = set(re.findall(r"\$\{(\w+)", body))
    named = {word for word in re.findall(r"\b[A-Z][A-Z0-9_]+\b", head) if word in used or word.endswith("PASSWORD")}
    assert used == named


@pytest.mark.parametrize("name", OURS)
def test_addresses_of_roles_are_where_they_listen(name: str) -> None:
    given = addresses(name)
    assert given.keys() == DEFAULT_ADDRESSES.keys()
    for role, address in given.items():
        host, _, port = address.rpartition(":")
        assert host == role
        assert port == DEFAULT_ADDRESSES[role].rpartition(":")[2]
        assert "back" in SERVICES[role]["networks"]
    assert settings(name).calls_host == "0.0.0.0"


def test_published_ports_are_those_of_the_interfaces() -> None:
    names = [*OURS, "proxy"]
    published = {name: {port.rpartition(":")[2] for port in SERVICES[name].get("ports", [])} for name in names}
    edge, gateway = settings("edge"), settings("gateway")
    expected = {
        "console": {str(edge.console_port)},
        "proxy": {str(port) for port in edge.interface_ports},
        "gateway": {str(gateway.gateway_port)},
    }
    assert {name: ports for name, ports in published.items() if ports} == expected
    edge, gateway = load(role_definition("edge").settings, {}), load(role_definition("gateway").settings, {})
    defaults = {*edge.interface_ports, gateway.gateway_port, edge.console_port}
    assert {int(port) for ports in expected.values() for port in ports} == defaults
    ((_, exposed),) = [step for step in dockerfile() if step[0] == "EXPOSE"]
    assert {int(port) for port in exposed.split()} == defaults


def test_metrics_are_not_published_to_the_network() -> None:
    console = str(settings("console").console_port)
    assert [port for port in SERVICES["console"]["ports"] if port.endswith(console)] == [
        f"127.0.0.1:{console}:{console}"
    ]
    others = [port for name, service in THEIRS.items() if name != "proxy" for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in others)


@pytest.mark.parametrize("name", OURS)
async def test_the_health_check_follows_readiness(name: str) -> None:
    """The command of the health check, run against the operations endpoint before and after the process is ready."""
    kind, program, flag, code = OURS[name]["healthcheck"]["test"]
    assert (kind, program, flag) == ("CMD", "python", "-c")
    port = settings(name).console_port
    assert f":{port}/" in code

    operations = Operations("127.0.0.1", 0)
    running = asyncio.create_task(operations.run(ready := asyncio.Event()))
    try:
        async with asyncio.timeout(60):
            await ready.wait()
        here = code.replace(f":{port}/", f":{operations.port}/")
        assert await exit_code(here) != 0
        operations.set_ready()
        assert await exit_code(here) == 0
    finally:
        running.cancel()
        await asyncio.wait([running])


async def exit_code(code: str) -> int:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stderr=subprocess.DEVNULL)
    return await process.wait()


def test_every_service_has_a_health_check_a_restart_policy_a_grace_period_and_a_memory_limit() -> None:
    for service in (service for name, service in SERVICES.items() if name not in ONCE):
        assert re.fullmatch(r"[1-9]\d*g", service["mem_limit"])
        assert service["healthcheck"]["test"]
        assert service["restart"] == "unless-stopped"
        assert re.fullmatch(r"\d+[sm]", service["stop_grace_period"])
    for service in OURS.values():
        assert int(service["stop_grace_period"].removesuffix("s")) > 30


def test_the_logs_of_every_container_are_bounded() -> None:
    for service in SERVICES.values():
        assert service["logging"]["driver"] == "local"
        options = service["logging"]["options"]
        assert re.fullmatch(r"[1-9]\d*m", options["max-size"])
        assert 2 <= int(options["max-file"]) <= 10


def test_dependencies_exist_and_have_no_circles() -> None:
    waits = {name: set(service.get("depends_on", {})) for name, service in SERVICES.items()}
    for service in SERVICES.values():
        for other, wait in service.get("depends_on", {}).items():
            assert other in SERVICES
            condition = "service_completed_successfully" if other in ONCE else "service_healthy"
            assert wait == {"condition": condition}
    assert waits["kafka-users"] == {"kafka"}
    assert all({"kafka-users", "certs"} <= waits[name] for name in (*OURS, "operator"))
    assert waits["proxy"] == {"edge"}
    started: set[str] = set()
    while len(started) < len(SERVICES):
        able = {name for name, others in waits.items() if others <= started} - started
        assert able
        started |= able


@pytest.mark.parametrize("name", OURS)
def test_state_is_on_a_volume_of_its_own(name: str) -> None:
    directory = environment(name)["CARILLON_DATA_DIR"]
    assert mounts(name)[directory] == name
    assert [other for other in SERVICES if name in mounts(other).values()] == [name]


def test_every_volume_is_declared_and_used() -> None:
    assert {volume for name in SERVICES for volume in mounts(name).values()} == set(COMPOSE["volumes"])


@pytest.mark.parametrize("name", OURS)
def test_each_role_gets_the_keys_that_it_needs_and_none_gets_the_master_key(name: str) -> None:
    given = settings(name)
    files = {KeyPurpose.DEVICES: given.device_keys_file, KeyPurpose.SECRETS: given.secrets_key_file}
    assert {purpose for purpose, file in files.items() if file} == role_definition(name).keys
    volumes = {KeyPurpose.DEVICES: "device-keys", KeyPurpose.SECRETS: "secrets-key"}
    mounted = {volume: directory for directory, volume in mounts(name).items()}
    assert mounted.keys() & {"keys", *volumes.values()} == {volumes[purpose] for purpose in role_definition(name).keys}
    for purpose in role_definition(name).keys:
        assert str(Path(files[purpose]).parent) == mounted[volumes[purpose]]


@pytest.mark.parametrize("name", OURS)
def test_each_role_has_the_public_keys_and_the_owners_of_signed_topics_their_own_signing_key(name: str) -> None:
    given, mounted = settings(name), mounts(name)
    signing = {f"{role}-signing-key" for role in SIGNERS}
    own = {f"{name}-signing-key"} & signing
    assert given.public_keys_file == "/public-keys/public.keys"
    assert mounted["/public-keys"] == "public-keys"
    assert set(mounted.values()) & signing == own
    assert (given.signing_key_file is not None) == bool(own)
    if given.signing_key_file:
        assert mounted[str(Path(given.signing_key_file).parent)] in own


def test_who_reads_or_appends_personal_values_gets_the_key_for_them_and_nobody_else() -> None:
    """The operator's commands read the log: copies of the keys, and replays for inspection."""
    given = {name for name in SERVICES if "persons-key" in mounts(name).values()}
    assert given == {"keys", "operator", *READERS_AND_WRITERS}
    for name in given - {"keys"}:
        assert "persons-key:/persons-key:ro" in SERVICES[name]["volumes"]
        assert environment(name)["CARILLON_PERSONS_KEY_FILE"] == "/persons-key/persons.key"


def test_the_keys_are_exported_before_the_roles_start(tmp_path: Path) -> None:
    """Run the command of the service `keys` with its directories under another root."""
    service = SERVICES["keys"]
    command, *arguments = [f"{tmp_path}{word}" if word.startswith("/") else word for word in service["command"]]
    for directory in mounts("keys"):
        (tmp_path / directory.removeprefix("/")).mkdir()
    env = {"CARILLON_MASTER_KEY_FILE": f"{tmp_path}{service['environment']['CARILLON_MASTER_KEY_FILE']}"}
    for _ in range(2):
        result = CliRunner().invoke(main, [command, *arguments], env=env)
        assert result.exit_code == 0, result.output
    for name in OURS:
        given, needed = settings(name), role_definition(name).keys
        moved = {
            field: f"{tmp_path}{file}"
            for field in ("device_keys_file", "secrets_key_file", "signing_key_file", "public_keys_file")
            if (file := getattr(given, field))
        }
        loaded = msgspec.structs.replace(given, data_dir="/none", **moved)
        load_keys(loaded, needed)
        assert load_signing_keys(loaded, name, reads_master=False).public.keys() == set(SIGNERS)
        assert read_keys(Path(f"{tmp_path}{given.persons_key_file}"), OptionalPurpose.PERSONS)
        assert "keys" in SERVICES[name]["depends_on"]


def listeners(name: str) -> dict[str, str]:
    """Return a setting of Kafka that has a value for each listener, such as `NAME://host:port,...`."""
    return dict(re.split(r":(?://)?", one, maxsplit=1) for one in SERVICES["kafka"]["environment"][name].split(","))


def test_kafka_advertises_the_roles_address_and_keeps_its_data() -> None:
    given = SERVICES["kafka"]["environment"]
    advertised, bound = listeners("KAFKA_ADVERTISED_LISTENERS"), listeners("KAFKA_LISTENERS")
    assert {settings(name).kafka_bootstrap for name in OURS} == {advertised["CLIENTS"]} == {"kafka:9092"}
    assert bound["CLIENTS"] == ":9092"
    assert given["KAFKA_CONTROLLER_QUORUM_VOTERS"] == f"{given['KAFKA_NODE_ID']}@{bound['CONTROLLER']}"
    assert given["KAFKA_LOG_DIRS"] in mounts("kafka")
    assert SERVICES["kafka"]["healthcheck"]["test"][-1] == bound["LOCAL"]


def test_kafka_is_reached_without_a_log_in_by_itself_and_by_the_step_that_makes_the_users() -> None:
    protocols, bound = listeners("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"), listeners("KAFKA_LISTENERS")
    assert protocols.keys() == bound.keys()
    open_listeners = {name for name, protocol in protocols.items() if not protocol.startswith("SASL")}
    assert open_listeners == {"CONTROLLER", "LOCAL"}
    assert all(bound[name].startswith("localhost:") for name in open_listeners)
    step = SERVICES["kafka-users"]
    assert step["network_mode"] == "service:kafka"
    assert environment("kafka-users")["CARILLON_KAFKA_BOOTSTRAP"] == bound["LOCAL"]
    assert [name for name, one in SERVICES.items() if one.get("network_mode") == "service:kafka"] == ["kafka-users"]


def test_kafka_is_the_version_that_the_tests_run() -> None:
    pom = (ROOT / "testkit/kafka/pom.xml").read_text()
    version = re.search(r"<artifactId>kafka_[\d.]+</artifactId>\s*<version>([\d.]+)</version>", pom)
    assert version
    assert SERVICES["kafka"]["image"].partition("@")[0] == f"apache/kafka:{version[1]}"


def role_uris(certificate: Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    return list(names.get_values_for_type(UniformResourceIdentifier))


def networks(name: str) -> set[str]:
    return set(SERVICES[name].get("networks", ()))


def test_a_container_is_in_the_networks_that_it_needs() -> None:
    """What faces outside reaches neither ClickHouse nor what else faces outside."""
    assert not [name for name, one in SERVICES.items() if not one.get("networks") and "network_mode" not in one]
    members = {network: {name for name in SERVICES if network in networks(name)} for network in COMPOSE["networks"]}
    assert members == {
        "front": {"proxy", "edge"},
        "devices": {"gateway"},
        "back": {*OURS, "kafka", "operator", "prometheus"},
        "store": {"clickhouse", "analytics", "grafana"},
        "apple": {"delivery"},
        "receivers": {"webhooks"},
        "pages": {"console"},
        "dashboards": {"prometheus", "grafana"},
    }
    internal = {name for name, one in COMPOSE["networks"].items() if one and one.get("internal")}
    assert internal == {"back", "store"}
    for name, service in SERVICES.items():
        if service.get("ports"):
            assert networks(name) - internal, f"{name} publishes ports, which needs a network to the world"


@pytest.mark.parametrize("name", OURS)
def test_calls_between_roles_and_to_kafka_are_authenticated(name: str) -> None:
    given = environment(name)
    assert "CARILLON_PLAINTEXT_CALLS" not in given
    identity = {"TLS_CERT": "tls.crt", "TLS_KEY": "tls.key", "TLS_AUTHORITY": "ca.crt"}
    identity["KAFKA_SASL_PASSWORD_FILE"] = PASSWORD_FILE
    assert {setting: given[f"CARILLON_{setting}"] for setting in identity} == {
        setting: f"/identity/{file}" for setting, file in identity.items()
    }
    assert (given["CARILLON_KAFKA_SASL_USER"], given["CARILLON_KAFKA_SASL_MECHANISM"]) == (
        f"carillon-{name}",
        "SCRAM-SHA-512",
    )


def test_each_container_has_the_identity_of_its_role_alone() -> None:
    made_by = {"certs": "operator-compose", "kafka-users": "operator"}
    for step, operator in made_by.items():
        folders = {path.rpartition("/")[2]: volume for path, volume in mounts(step).items() if path != "/identities"}
        names = {"operator" if name == operator else name for name in folders}
        assert names - {"archive"} == {*OURS, "operator"}
        assert all(volume == f"identity-{name.removesuffix('-compose')}" for name, volume in folders.items())
    for name in (*OURS, "operator"):
        mine = {path: volume for path, volume in mounts(name).items() if volume.startswith(("identity-", "authority"))}
        assert mine == {"/identity": f"identity-{name}"}
        assert f"identity-{name}:/identity:ro" in SERVICES[name]["volumes"]
    assert [name for name in SERVICES if "authority" in mounts(name).values()] == ["certs"]


def test_the_steps_before_the_first_start_make_what_the_roles_are_given(tmp_path: Path) -> None:
    """Run the command of the service `certs` with its folder under another root: each role can load its certificate."""
    command, *arguments = [
        f"{tmp_path}{word}" if word.startswith("/") else word for word in SERVICES["certs"]["command"]
    ]
    result = CliRunner().invoke(main, [command, *arguments], env=SERVICES["certs"]["environment"])
    assert result.exit_code == 0, result.output
    for path, volume in mounts("certs").items():
        folder = tmp_path / path.removeprefix("/")
        if volume == "authority":
            assert (folder / "ca.key").exists()
            continue
        certificate = load_pem_x509_certificate((folder / "tls.crt").read_bytes())
        name = volume.removeprefix("identity-")
        hosts = [addresses(name)[name].rpartition(":")[0]] if name in DEFAULT_ADDRESSES else []
        assert hosts_of(certificate) == hosts
        (role,) = role_uris(certificate)
        assert role == f"{ROLE_URI}{name}"
        assert {file.name for file in folder.iterdir()} == {"tls.crt", "tls.key", "ca.crt"}


def test_no_password_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    given = dict(re.findall(r"\$\{(\w*PASSWORD\w*)(:?[-?]?)", text))
    assert given == dict.fromkeys(("CLICKHOUSE_PASSWORD", "CLICKHOUSE_DASHBOARDS_PASSWORD", "GRAFANA_PASSWORD"), ":?")
    for service in SERVICES.values():
        for key, value in service.get("environment", {}).items():
            assert "PASSWORD" not in key or key.endswith("_FILE") or str(value).startswith("${"), key


def test_the_id_of_kafkas_cluster_has_no_default() -> None:
    """By it a role notices that its state belongs to the log of another installation."""
    assert SERVICES["kafka"]["environment"]["CLUSTER_ID"].startswith("${KAFKA_CLUSTER_ID:?")


def test_analytics_reaches_clickhouse_as_its_user() -> None:
    url = urlsplit(settings("analytics").clickhouse_url)
    given = environment("clickhouse")
    assert (url.hostname, url.port) == ("clickhouse", 8123)
    users = ElementTree.parse(configs("clickhouse")["/etc/clickhouse-server/users.d/carillon.xml"])
    user = users.find(f"users/{url.username}")
    assert user is not None
    (password,) = user.iter("password")
    assert url.password == given[password.attrib["from_env"]]
    assert {"CLICKHOUSE_USER", "CLICKHOUSE_PASSWORD"}.isdisjoint(given), "the image's user would be open to the network"
    grants = [grant.text for grant in user.iterfind("grants/query")]
    database = given["CLICKHOUSE_DB"]
    own = [f"GRANT ALL ON {name}.*" for name in (database, f"{database}_verify")]
    assert grants == [*own, "GRANT SELECT ON system.*", "GRANT KILL QUERY ON *.*"]
    assert url.password == "of-CLICKHOUSE_PASSWORD"
    assert url.path == f"/{given['CLICKHOUSE_DB']}"
    assert f":{url.port}/ping" in SERVICES["clickhouse"]["healthcheck"]["test"][-1]


def test_every_config_is_a_file_that_is_used() -> None:
    assert all((ROOT / config["file"]).is_file() for config in COMPOSE["configs"].values())
    used = [one["source"] for service in SERVICES.values() for one in service.get("configs", [])]
    assert sorted(used) == sorted(COMPOSE["configs"])
