"""deploy/kubernetes/network-policies.yaml: who may reach whom, and that everything else is refused."""

from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple

import pytest
import yaml

from carillon.roles import ROLES
from services.domain.role_context import DEFAULT_ADDRESSES
from services.net.http.operations import METRICS_PORT
from testkit.repository import ROOT
from tests.contract.kubernetes.test_roles import COMMON, WORKLOADS, container

FOLDER = ROOT / "deploy/kubernetes"
POLICIES: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "network-policies.yaml").read_text()))
CALLS = {role: int(address.rpartition(":")[2]) for role, address in DEFAULT_ADDRESSES.items()}
ROLE_PODS = {role: dict(WORKLOADS[role]["spec"]["template"]["metadata"]["labels"]) for role in ROLES}
PODS = {
    **ROLE_PODS,
    "operator": yaml.safe_load((FOLDER / "operator/operator.yaml").read_text())["metadata"]["labels"],
    "archive": {"app.kubernetes.io/name": "archive", "app.kubernetes.io/part-of": "carillon"},
}
NAMESPACES = {
    "kafka": {"carillon/kafka": "allowed"},
    "clickhouse": {"carillon/clickhouse": "allowed"},
    "ingress": {"carillon/ingress": "allowed"},
    "metrics": {"carillon/metrics": "allowed"},
    "another": {"kubernetes.io/metadata.name": "another"},
}
WORLD, INSIDE = "17.57.144.1", "10.2.3.4"
"""An address of Apple, and one in the cluster's or the company's network."""


class Way(NamedTuple):
    """A connection that the policies of one side allow: from or to a pod, a namespace or an address, and the port."""

    pod: str
    other: str
    port: int


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Return whether a label selector of Kubernetes selects these labels."""
    wanted = selector.get("matchLabels", {})
    expressions = selector.get("matchExpressions", [])
    assert all(one["operator"] == "In" for one in expressions)
    return all(labels.get(name) == value for name, value in wanted.items()) and all(
        labels.get(one["key"]) in one["values"] for one in expressions
    )


def others(peers: list[dict[str, Any]] | None) -> set[str]:
    """Return the pods, namespaces and addresses that the peers of a rule name; all of them where it names none."""
    if peers is None:
        return {*PODS, *NAMESPACES, WORLD, INSIDE}
    found: set[str] = set()
    for peer in peers:
        if "ipBlock" in peer:
            block, left_out = ip_network(peer["ipBlock"]["cidr"]), map(ip_network, peer["ipBlock"].get("except", []))
            excepted = list(left_out)
            for address in (WORLD, INSIDE):
                inside = ip_address(address) in block and not any(ip_address(address) in one for one in excepted)
                found |= {address} if inside else set()
        elif "namespaceSelector" in peer:
            found |= {name for name, labels in NAMESPACES.items() if selects(peer["namespaceSelector"], labels)}
        else:
            found |= {name for name, labels in PODS.items() if selects(peer["podSelector"], labels)}
    return found


def allowed(direction: str, peers: str) -> Iterator[Way]:
    for policy in POLICIES:
        for rule in policy["spec"].get(direction, []):
            for pod, labels in PODS.items():
                if selects(policy["spec"]["podSelector"], labels):
                    for other in others(rule.get(peers)):
                        yield from (Way(pod, other, port["port"]) for port in rule["ports"] if port["port"] != 53)


IN, OUT = set(allowed("ingress", "from")), set(allowed("egress", "to"))


def test_what_no_policy_names_is_refused_for_every_pod() -> None:
    spec = next(policy["spec"] for policy in POLICIES if policy["metadata"]["name"] == "nobody")
    assert spec == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for policy in POLICIES:
        named = {kind for kind in ("Ingress", "Egress") if kind.lower() in policy["spec"]}
        assert named == set(policy["spec"]["policyTypes"]) or policy["metadata"]["name"] == "nobody"


@pytest.mark.parametrize("role", CALLS)
def test_roles_and_operators_call_a_role_at_its_port_and_nobody_else_does(role: str) -> None:
    """Every role asks the others for their clocks and what they have applied; certificates decide about the rest."""
    callers = {*ROLES, "operator"}
    entering = {way.other for way in IN if (way.pod, way.port) == (role, CALLS[role])}
    leaving = {way.pod for way in OUT if (way.other, way.port) == (role, CALLS[role])}
    assert entering == leaving == callers


def test_what_comes_in_from_outside() -> None:
    ports = {role: {port["name"]: port["containerPort"] for port in container(role)["ports"]} for role in ROLES}
    outside = {way for way in IN if way.other not in PODS}
    metrics = {Way(pod, "metrics", port) for pod in PODS for port in (ports["edge"]["operations"], METRICS_PORT)}
    devices = {Way("gateway", other, ports["gateway"]["devices"]) for other in (*NAMESPACES, WORLD, INSIDE)}
    servers = {Way("edge", "ingress", ports["edge"][name]) for name in ("android", "ios", "v2")}
    assert outside == metrics | devices | servers | {Way("console", "ingress", ports["console"]["operations"])}


def test_what_goes_out() -> None:
    outside = {way for way in OUT if way.other not in PODS}
    log = {Way(pod, "kafka", port) for pod in PODS for port in (9092, 9093)}
    assert int(COMMON["CARILLON_KAFKA_BOOTSTRAP"].rpartition(":")[2]) in {way.port for way in log}
    history = {Way("analytics", "clickhouse", port) for port in (8123, 8443)}
    assert outside == log | history | {Way(pod, WORLD, 443) for pod in ("delivery", "console", "webhooks")}


def test_the_page_names_the_labels_of_namespaces() -> None:
    page = (ROOT / "docs/operators/kubernetes.md").read_text()
    for labels in list(NAMESPACES.values())[:-1]:
        ((label, value),) = labels.items()
        assert f"{label}={value}" in page
