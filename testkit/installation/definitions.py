"""The definitions of an installation's processes: the arguments and settings of each, by name."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.domain.role_context import ROLES_WITH_STANDBYS
from testkit.installation.without_embedded import without_embedded

BACKENDS = ("registry", "targeting", "scheduling", "delivery", "analytics")
FRONTENDS = ("gateway", "edge")
CONSOLE = ("accounts", "webhooks", "console")
STANDBYS = tuple(f"{role}-standby" for role in BACKENDS if role in ROLES_WITH_STANDBYS)


@dataclass(frozen=True)
class ProcessDefinition:
    """One process: its arguments, and its settings beside those of the whole installation."""

    arguments: tuple[str, ...]
    operations_port: int
    env: Mapping[str, str]


def role_processes(
    shards: int, single: Sequence[str], ports: Iterator[int], certificates: Path
) -> dict[str, ProcessDefinition]:
    """Return one process for each backend role, or for each shard of it, by name and in the order of starting.

    The `single` roles have one process each. Only those of analytics can import the packages of the extra `embedded`.
    """
    unable = without_embedded(certificates / "without_embedded")
    extra = {role: {} if role == "analytics" else unable for role in (*BACKENDS, *single)}
    processes = {
        role if shards == 1 else f"{role}-{shard}": ProcessDefinition(
            ("serve", role),
            next(ports),
            {
                "CARILLON_SHARD": str(shard),
                "CARILLON_SHARDS": str(shards),
                **tls_settings(certificates, role),
                **extra[role],
            },
        )
        for role in BACKENDS
        for shard in range(shards)
    }
    return processes | {
        role: ProcessDefinition(("serve", role), next(ports), {**tls_settings(certificates, role), **extra[role]})
        for role in single
    }


def standby_process(
    name: str,
    shards: int,
    ports: Iterator[int],
    env: Mapping[str, str],
    definitions: Mapping[str, ProcessDefinition],
) -> ProcessDefinition:
    """Return a process such as `scheduling-standby`, which has the first shard of its role and a directory of its own.

    `env` and `definitions` are those of the installation that it joins.
    """
    role = name.removesuffix("-standby")
    setting = f"CARILLON_{role.upper()}_ADDR"
    data = Path(env["CARILLON_DATA_DIR"])
    own = {
        setting: ",".join([f"127.0.0.1:{next(ports)}", *env[setting].split(",")[1:]]),
        "CARILLON_DATA_DIR": str(data / name),
        "CARILLON_MASTER_KEY_FILE": str(data / "master.key"),
    }
    first = definitions[role if shards == 1 else f"{role}-0"]
    return ProcessDefinition(("serve", role), next(ports), {**first.env, **own})


def tls_settings(certificates: Path, name: str) -> dict[str, str]:
    """Return the settings of a process with a certificate that `carillon certs` has made."""
    folder = certificates / name
    files = {"CERT": "tls.crt", "KEY": "tls.key", "AUTHORITY": "ca.crt"}
    return {f"CARILLON_TLS_{setting}": str(folder / file) for setting, file in files.items()}
