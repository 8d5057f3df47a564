"""docker-compose.yml and the Dockerfile, parsed for the tests."""

import re
import tempfile
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from carillon.commands.acls import PASSWORD_FILE
from carillon.roles import role_definition
from services.domain.settings import PREFIX, load
from testkit.certificates import Authority
from testkit.repository import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service.get("command", [""])[0] == "serve"}
ONCE = {name: service for name, service in SERVICES.items() if "build" in service and name not in OURS}
THEIRS = {name: service for name, service in SERVICES.items() if "build" not in service}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def dockerfile() -> list[tuple[str, str]]:
    """Return the Dockerfile as (instruction, arguments) pairs."""
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line.strip() and not line.startswith("#")]
    return [(instruction, " ".join(arguments.split())) for instruction, arguments in steps]


def image_settings() -> dict[str, str]:
    """Return the environment that the image sets for every container."""
    pairs = [pair.split("=", 1) for step, arguments in dockerfile() if step == "ENV" for pair in arguments.split()]
    return dict(pairs)


def environment(name: str) -> dict[str, str]:
    """Return the environment of a service where `.env` holds only what is required: a value `of-VARIABLE` each."""
    given = {**image_settings(), **SERVICES[name].get("environment", {})}
    filled = {key: re.sub(r"\$\{(\w+):\?[^}]*\}", r"of-\1", str(value)) for key, value in given.items()}
    return {key: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for key, value in filled.items()}


@cache
def _identity() -> tempfile.TemporaryDirectory[str]:
    """Make files as each role's volume at /identity holds them."""
    directory = tempfile.TemporaryDirectory()
    issued = Authority(Path(directory.name) / "authority").issue("any")
    for name, file in (("tls.crt", issued.certificate), ("tls.key", issued.key), ("ca.crt", issued.authority)):
        Path(directory.name, name).write_bytes(file.read_bytes())
    Path(directory.name, PASSWORD_FILE).write_text("secret\n")
    return directory


def settings(name: str) -> Any:
    """Return the settings of a role, with files of a certificate and a password at its paths."""
    given = {key: value.replace("/identity/", f"{_identity().name}/") for key, value in environment(name).items()}
    return load(role_definition(name).settings, given)


def addresses(name: str) -> dict[str, str]:
    """Return the CARILLON_<ROLE>_ADDR settings of a service, by role."""
    pattern = re.compile(rf"{PREFIX}([A-Z]+)_ADDR")
    return {match[1].lower(): value for key, value in environment(name).items() if (match := pattern.fullmatch(key))}


def mounts(name: str) -> dict[str, str]:
    """Return the volumes of a service, by directory."""
    split = (mount.split(":") for mount in SERVICES[name].get("volumes", []))
    return {target: volume for volume, target, *_ in split if not volume.startswith("./")}


def configs(name: str) -> dict[str, Path]:
    """Return the config files of a service, by their path in the container."""
    given = SERVICES[name].get("configs", [])
    return {one["target"]: ROOT / COMPOSE["configs"][one["source"]]["file"] for one in given}
