"""An installation with several processes of most roles, behind a load balancer, on a Kafka cluster."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from services.domain.role_context import ROLES_WITH_STANDBYS
from testkit import plain_http
from testkit.faults.set_clock import SettableClock
from testkit.installation.balancer import CHECK_INTERVAL_S, CHECKS_FAILED, Balancer, Listener, Server
from testkit.installation.definitions import FRONTENDS
from testkit.installation.processes import Installation
from testkit.kafka.cluster import KafkaCluster
from testkit.ports import free_ports

SECOND_PROCESSES = tuple(f"{role}-2" for role in FRONTENDS)
"""The second process of each frontend."""

PROXIED = {
    "edge-2": "EDGE",
    "delivery": "DELIVERY",
    "scheduling": "SCHEDULING",
    "scheduling-standby": "STANDBY",
    "delivery-standby": "RESERVE",
}
"""Processes whose connections to Kafka pass proxies, with the names of their listeners."""

CLOCKS = ("edge-2", "gateway-2", "delivery")
"""Processes whose clocks can be set."""

_PORTS = ("V2_PORT", "ANDROID_PORT", "IOS_PORT", "GATEWAY_PORT")
_OWNS = re.compile(r"^carillon_owner\{.*\} 1\.0$", re.MULTILINE)


class ClusterInstallation(Installation):
    """Two edges, two gateways, and a standby of each role that can have one.

    Clients reach the edges and gateways through HAProxy. Two processes of one role have different directories, as on
    several machines.

    `former` is the directory with the code of a former version. Then accounts and the console run too, and the
    processes named in `of_former_version` run that code: all of them at first.
    """

    def __init__(self, data: Path, cluster: KafkaCluster, former: Path | None = None) -> None:
        super().__init__(data, cluster.bootstrap, standbys=True, console=former is not None)
        if former:
            del self._definitions["webhooks"]  # a role that no released version has yet
        self._cluster = cluster
        self._former = former
        self.clocks = {name: SettableClock(data / "clocks" / name) for name in CLOCKS}
        self.env |= {
            "CARILLON_KAFKA_REPLICATION": str(len(cluster.brokers)),
            "CARILLON_MASTER_KEY_FILE": str(data / "master.key"),
            "CARILLON_TRUSTED_PROXIES": "127.0.0.1",
            "CARILLON_DRAIN_S": str(int(CHECK_INTERVAL_S * CHECKS_FAILED) + 1),
        }
        for name in SECOND_PROCESSES:
            self._add_second(name)
        self.of_former_version = set(self.names if former else ())
        edges = {name: self.env_of(name) for name in ("edge", "edge-2")}
        gateways = {name: self.env_of(name) for name in ("gateway", "gateway-2")}
        listeners = [_listener("http", edges, name) for name in _PORTS[:3]]
        self._balancer = Balancer(data / "balancer", [*listeners, _listener("tcp", gateways, _PORTS[3])])
        v2, android, ios, gateway = self._balancer.ports
        self.v2_url = f"http://127.0.0.1:{v2}"
        self.android_url = f"http://127.0.0.1:{android}"
        self.ios_url = f"http://127.0.0.1:{ios}"
        self.gateway_url = f"ws://127.0.0.1:{gateway}/device/v1"

    def start_balancer(self) -> None:
        self._balancer.start()

    def env_of(self, name: str) -> dict[str, str]:
        env = super().env_of(name)
        if PROXIED.get(name) in self._cluster.proxied:
            env["CARILLON_KAFKA_BOOTSTRAP"] = self._cluster.bootstrap_of(PROXIED[name])
        path = [
            self.clocks[name].python_path if name in self.clocks else None,
            str(self._former) if name in self.of_former_version else None,
            env.get("PYTHONPATH"),
        ]
        return {**env, "PYTHONPATH": os.pathsep.join(filter(None, path))}

    def of_role(self, role: str) -> list[str]:
        """Return the names of the role's processes; the owner comes first where there are standbys."""
        names = [name for name in self.names if name in (role, f"{role}-2", f"{role}-standby")]
        return sorted(names, key=self._owns, reverse=True) if role in ROLES_WITH_STANDBYS else names

    def state_directory(self, role: str) -> Path:
        """Return where the first process of a role keeps its state."""
        return self.data / role

    def close(self) -> None:
        self._balancer.close()
        super().close()

    def _owns(self, name: str) -> bool:
        with plain_http.client(timeout=10) as http:
            return _OWNS.search(http.get(f"{self.operations_url(name)}/metrics").text) is not None

    def _add_second(self, name: str) -> None:
        role = name.removesuffix("-2")
        operations, *ports = free_ports(1 + len(_PORTS))
        own = {f"CARILLON_{setting}": str(port) for setting, port in zip(_PORTS, ports, strict=True)}
        own["CARILLON_DATA_DIR"] = str(self.data / name)
        first = self._definitions[role]
        self._definitions[name] = replace(first, operations_port=operations, env={**first.env, **own})


def _listener(mode: str, envs: Mapping[str, Mapping[str, str]], setting: str) -> Listener:
    servers = [Server(name, _port(env, setting), _port(env, "CONSOLE_PORT")) for name, env in envs.items()]
    return Listener(mode, servers)


def _port(env: Mapping[str, str], setting: str) -> int:
    return int(env[f"CARILLON_{setting}"])
