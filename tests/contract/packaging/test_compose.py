"""docker-compose.yml and the Dockerfile, held against the settings, ports, commands and files that exist."""

import ast
import asyncio
import fnmatch
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import click
import msgspec
import pytest
import yaml

from carillon.main import COMMANDS, main
from carillon.roles import ROLES, role_definition
from services.domain.role_context import DEFAULT_ADDRESSES
from services.runtime.http.operations import Operations
from services.runtime.process.settings import PREFIX, load
from testkit.repository import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
THEIRS = {name: service for name, service in SERVICES.items() if "build" not in service}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def dockerfile() -> list[tuple[str, str]]:
    """(instruction, arguments) pairs."""
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line.strip() and not line.startswith("#")]
    return [(instruction, " ".join(arguments.split())) for instruction, arguments in steps]


def image_settings() -> dict[str, str]:
    """What the image sets for every container."""
    pairs = [pair.split("=", 1) for step, arguments in dockerfile() if step == "ENV" for pair in arguments.split()]
    return dict(pairs)


def environment(name: str) -> dict[str, str]:
    """What the service's process sees when the .env file says nothing."""
    given = {**image_settings(), **SERVICES[name]["environment"]}
    return {key: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value)) for key, value in given.items()}


def settings(name: str) -> Any:
    return load(role_definition(name).settings, environment(name))


def addresses(name: str) -> dict[str, str]:
    """The CARILLON_<ROLE>_ADDR settings of a service, by role."""
    pattern = re.compile(rf"{PREFIX}([A-Z]+)_ADDR")
    return {match[1].lower(): value for key, value in environment(name).items() if (match := pattern.fullmatch(key))}


def mounts(name: str) -> dict[str, str]:
    """Volume by directory."""
    return {target: volume for volume, target in (mount.split(":") for mount in SERVICES[name].get("volumes", []))}


def configs(name: str) -> dict[str, Path]:
    """File by where the container sees it."""
    given = SERVICES[name].get("configs", [])
    return {one["target"]: ROOT / COMPOSE["configs"][one["source"]]["file"] for one in given}


def test_every_role_is_a_service_and_every_service_a_role_that_can_be_served() -> None:
    assert OURS.keys() == ROLES.keys()
    for name, service in OURS.items():
        assert service["command"] == ["serve", name]
        command, *arguments = service["command"]
        subcommand = main.get_command(click.Context(main), command)
        assert subcommand is not None
        subcommand.make_context(command, arguments)


@pytest.mark.parametrize("name", OURS)
def test_every_setting_exists_and_the_values_are_accepted(name: str) -> None:
    fields = {PREFIX + field.name.upper() for field in msgspec.structs.fields(role_definition(name).settings)}
    known = fields | {f"{PREFIX}{role.upper()}_ADDR" for role in DEFAULT_ADDRESSES}
    assert {key for key in environment(name) if key.startswith(PREFIX)} <= known
    loaded = settings(name)
    assert loaded.host == "0.0.0.0"
    assert loaded.kafka_bootstrap


def test_what_the_env_file_may_say_is_used_and_named_in_the_head() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    head, _, body = text.partition("\nname: ")
    used = set(re.findall(r"\$\{(\w+)", body))
    named = {word for word in re.findall(r"\b[A-Z][A-Z_]+\b", head) if word in used or word.endswith("PASSWORD")}
    assert used == named


@pytest.mark.parametrize("name", OURS)
def test_every_role_finds_every_other_where_it_listens(name: str) -> None:
    given = addresses(name)
    assert given.keys() == DEFAULT_ADDRESSES.keys()
    for role, address in given.items():
        host, _, port = address.rpartition(":")
        assert host == ("0.0.0.0" if role == name else role)
        assert port == DEFAULT_ADDRESSES[role].rpartition(":")[2]
        assert port == addresses(role)[role].rpartition(":")[2]


def test_published_ports_are_those_of_the_doors() -> None:
    published = {name: {port.rpartition(":")[2] for port in service.get("ports", [])} for name, service in OURS.items()}
    edge, gateway = settings("edge"), settings("gateway")
    of_edge = {str(port) for port in (*edge.interface_ports, edge.console_port)}
    expected = {"edge": of_edge, "gateway": {str(gateway.gateway_port)}}
    assert {name: ports for name, ports in published.items() if ports} == expected
    edge, gateway = load(role_definition("edge").settings, {}), load(role_definition("gateway").settings, {})
    defaults = {*edge.interface_ports, gateway.gateway_port, edge.console_port}
    assert {int(port) for ports in expected.values() for port in ports} == defaults
    ((_, exposed),) = [step for step in dockerfile() if step[0] == "EXPOSE"]
    assert {int(port) for port in exposed.split()} == defaults


def test_metrics_are_not_published_to_the_network() -> None:
    console = str(settings("edge").console_port)
    assert [port for port in SERVICES["edge"]["ports"] if port.endswith(console)] == [f"127.0.0.1:{console}:{console}"]
    others = [port for service in THEIRS.values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in others)


@pytest.mark.parametrize("name", OURS)
async def test_the_health_check_asks_what_the_process_answers(name: str) -> None:
    """The command itself, run against the real console, before and after the process is ready."""
    kind, program, flag, code = OURS[name]["healthcheck"]["test"]
    assert (kind, program, flag) == ("CMD", "python", "-c")
    port = settings(name).console_port
    assert f":{port}/" in code

    operations = Operations("127.0.0.1", 0)
    running = asyncio.create_task(operations.run(ready := asyncio.Event()))
    try:
        async with asyncio.timeout(10):
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


def test_every_service_is_checked_started_again_and_given_time_to_stop() -> None:
    for service in SERVICES.values():
        assert service["healthcheck"]["test"]
        assert service["restart"] == "unless-stopped"
        assert re.fullmatch(r"\d+[sm]", service["stop_grace_period"])
    for service in OURS.values():
        assert int(service["stop_grace_period"].removesuffix("s")) > 30


def test_nobody_waits_for_a_service_that_does_not_exist_or_for_each_other() -> None:
    waits = {name: set(service.get("depends_on", {})) for name, service in SERVICES.items()}
    for service in SERVICES.values():
        for other, wait in service.get("depends_on", {}).items():
            assert other in SERVICES
            assert wait == {"condition": "service_healthy"}
    assert all("kafka" in waits[name] for name in OURS)
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
def test_the_master_key_is_where_secrets_are_sealed_or_opened_and_nowhere_else(name: str) -> None:
    needed = any(
        uses_keys(path)
        for path in (ROOT / ROLES[name].replace(".", "/")).parent.rglob("*.py")
        if "cli" not in path.parts
    )
    assert ("keys" in mounts(name).values()) == needed
    if needed:
        key = Path(settings(name).key_file)
        assert mounts(name)[str(key.parent)] == "keys"


def uses_keys(path: Path) -> bool:
    """Whether the module reads `keys` of its surroundings."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "keys"
        and isinstance(node.value, ast.Name | ast.Attribute)
        and (node.value.id if isinstance(node.value, ast.Name) else node.value.attr).strip("_") == "context"
        for node in ast.walk(ast.parse(path.read_text()))
    )


def test_kafka_advertises_what_the_roles_are_told_and_keeps_its_data() -> None:
    given = SERVICES["kafka"]["environment"]
    assert given["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{settings('registry').kafka_bootstrap}"
    assert len({settings(name).kafka_bootstrap for name in OURS}) == 1
    listeners = dict(one.split("://:") for one in given["KAFKA_LISTENERS"].split(","))
    assert settings("registry").kafka_bootstrap == f"kafka:{listeners['PLAINTEXT']}"
    assert given["KAFKA_CONTROLLER_QUORUM_VOTERS"] == f"{given['KAFKA_NODE_ID']}@localhost:{listeners['CONTROLLER']}"
    assert given["KAFKA_LOG_DIRS"] in mounts("kafka")
    assert SERVICES["kafka"]["healthcheck"]["test"][-1].endswith(f":{listeners['PLAINTEXT']}")


def test_kafka_is_the_version_that_the_tests_run() -> None:
    pom = (ROOT / "testkit/kafka/pom.xml").read_text()
    version = re.search(r"<artifactId>kafka_[\d.]+</artifactId>\s*<version>([\d.]+)</version>", pom)
    assert version
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{version[1]}"


def test_analytics_reaches_clickhouse_as_its_user() -> None:
    url = urlsplit(settings("analytics").clickhouse_url)
    given = environment("clickhouse")
    assert (url.hostname, url.port) == ("clickhouse", 8123)
    assert (url.username, url.password) == (given["CLICKHOUSE_USER"], given["CLICKHOUSE_PASSWORD"])
    assert url.path == f"/{given['CLICKHOUSE_DB']}"
    assert f":{url.port}/ping" in SERVICES["clickhouse"]["healthcheck"]["test"][-1]


def test_dashboards_are_given_to_grafana_where_it_looks_for_them() -> None:
    given = configs("grafana")
    (provider,) = yaml.safe_load(given["/etc/grafana/provisioning/dashboards/carillon.yml"].read_text())["providers"]
    folder = provider["options"]["path"]
    boards = {path for target, path in given.items() if target.startswith(f"{folder}/") and target.endswith(".json")}
    assert boards == set((ROOT / "dashboards").glob("*.json"))


def test_dashboards_read_clickhouse_as_a_user_that_can_only_read() -> None:
    text = configs("grafana")["/etc/grafana/provisioning/datasources/carillon.yml"].read_text()
    sources = {source["uid"]: source for source in yaml.safe_load(text)["datasources"]}
    source, clickhouse = sources["carillon-clickhouse"], environment("clickhouse")
    assert source["type"] == environment("grafana")["GF_PLUGINS_PREINSTALL_SYNC"].partition("@")[0]
    url = urlsplit(settings("analytics").clickhouse_url)
    given = source["jsonData"]
    assert (given["host"], given["port"], given["protocol"]) == (url.hostname, url.port, url.scheme)
    assert given["defaultDatabase"] == clickhouse["CLICKHOUSE_DB"]
    users = ElementTree.parse(configs("clickhouse")["/etc/clickhouse-server/users.d/dashboards.xml"])
    user = users.find(f"users/{given['username']}")
    assert user is not None
    assert user.findtext("grants/query") == f"GRANT SELECT ON {given['defaultDatabase']}.*"
    assert users.findtext(f"profiles/{user.findtext('profile')}/readonly") == "2"
    (password,) = user.iter("password")
    name = password.attrib["from_env"]
    assert source["secureJsonData"]["password"] == f"${name}"
    assert environment("grafana")[name] == clickhouse[name] != clickhouse["CLICKHOUSE_PASSWORD"]


def test_prometheus_reads_the_metrics_of_every_role_and_grafana_reads_prometheus() -> None:
    config = yaml.safe_load(configs("prometheus")["/etc/prometheus/prometheus.yml"].read_text())
    targets = [target for job in config["scrape_configs"] for one in job["static_configs"] for target in one["targets"]]
    assert sorted(targets) == sorted(f"{name}:{settings(name).console_port}" for name in OURS)
    text = configs("grafana")["/etc/grafana/provisioning/datasources/carillon.yml"].read_text()
    sources = {source["uid"]: source for source in yaml.safe_load(text)["datasources"]}
    url = urlsplit(sources["carillon-prometheus"]["url"])
    assert f"http://127.0.0.1:{url.port}/" in SERVICES[str(url.hostname)]["healthcheck"]["test"][-1]


def test_every_config_is_a_file_that_is_used() -> None:
    assert all((ROOT / config["file"]).is_file() for config in COMPOSE["configs"].values())
    used = [one["source"] for service in SERVICES.values() for one in service.get("configs", [])]
    assert sorted(used) == sorted(COMPOSE["configs"])


def test_nothing_that_the_service_needs_waits_for_dashboards() -> None:
    optional = {name for name, service in SERVICES.items() if "profiles" in service}
    assert optional == {"grafana", "prometheus"}
    assert all(not optional & service.get("depends_on", {}).keys() for service in OURS.values())


def test_images_are_pinned() -> None:
    images = [service["image"] for service in THEIRS.values()]
    images += [arguments.split()[0] for step, arguments in dockerfile() if step == "FROM"]
    assert all(re.fullmatch(r"[\w./-]+:v?\d+\.\d+[\w.-]*", image) for image in images)


def test_the_image_runs_the_command_as_a_user_that_owns_its_directories() -> None:
    steps = dockerfile()
    final = steps[max(index for index, (step, _) in enumerate(steps) if step == "FROM") :]
    made = next(arguments for step, arguments in final if step == "RUN")
    order = [step for step, _ in final]
    ((_, user),) = [step for step in final if step[0] == "USER"]
    assert user not in ("root", "0")
    assert re.search(rf"useradd .*\b{user}\b", made)
    assert order.index("USER") > max(index for index, step in enumerate(order) if step in ("RUN", "COPY"))
    owned = re.search(rf"install -d -o {user} -g {user} -m 0700 (.*)", made)
    assert owned
    directories = {target for name in OURS for target in mounts(name)}
    assert directories == set(owned[1].split())

    ((_, entry),) = [step for step in final if step[0] == "ENTRYPOINT"]
    ((_, command),) = [step for step in final if step[0] == "CMD"]
    (program,) = msgspec.json.decode(entry)
    assert program in PROJECT["project"]["scripts"]
    assert set(msgspec.json.decode(command)) <= set(COMMANDS)


def test_the_image_is_built_from_files_that_exist_and_are_sent_to_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert ignored[1] == "*"
    copied = {
        source
        for step, arguments in dockerfile()
        if step == "COPY" and "--from" not in arguments
        for source in arguments.split()[:-1]
    }
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {package.split("/")[0] for package in packages} <= copied
    assert PROJECT["tool"]["hatch"]["build"]["hooks"]["custom"]["path"].split("/")[0] in copied
    assert PROJECT["project"]["readme"] in copied
    artifacts = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["artifacts"]
    assert all(any(fnmatch.fnmatch(f"x{artifact[1:]}", line[3:]) for line in ignored) for artifact in artifacts)


def test_the_commands_of_the_dockerfile_exist() -> None:
    stages = {arguments.split(" AS ")[1] for step, arguments in dockerfile() if step == "FROM" and " AS " in arguments}
    for step, arguments in dockerfile():
        if step == "RUN":
            for command in arguments.split("&&"):
                program = shlex.split(command)[0]
                made_before = program == "/opt/carillon/bin/pip" and "venv /opt/carillon" in arguments
                assert made_before or shutil.which(program), program
        if step == "COPY" and "--from" in arguments:
            assert arguments.split()[0].removeprefix("--from=") in stages
    python = next(arguments for step, arguments in dockerfile() if step == "FROM").split()[0]
    assert python.startswith("python:" + PROJECT["project"]["requires-python"].removeprefix(">="))
