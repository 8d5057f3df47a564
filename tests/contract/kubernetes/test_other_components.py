"""deploy/kubernetes/monitoring, cert-manager, ingress and autoscaling: they name pods, ports and secrets that exist."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from carillon.roles import ROLES
from services.domain.role_context import DEFAULT_ADDRESSES, role_addresses
from services.net.rpc.caller import ROLE_URI
from testkit.repository import ROOT
from tests.contract.kubernetes.test_roles import COMMON, KUBERNETES, OBJECTS, WORKLOADS, container, pod

FOLDER = ROOT / "deploy/kubernetes"
COMPONENTS = ("monitoring", "cert-manager", "ingress", "autoscaling")
KUBECTL = shutil.which("kubectl")


def objects(component: str) -> list[dict[str, Any]]:
    folder = FOLDER / component
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    files = sorted([*kustomization["resources"], "kustomization.yaml"])
    assert files == sorted(file.name for file in folder.iterdir())
    return [one for name in kustomization["resources"] for one in yaml.safe_load_all((folder / name).read_text())]


def test_every_pod_is_read_once_at_the_port_of_its_metrics() -> None:
    read: dict[str, str] = {}
    for monitor in (one for one in objects("monitoring") if one["kind"] == "PodMonitor"):
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        selector = monitor["spec"]["selector"]
        roles = [selector["matchLabels"]["app.kubernetes.io/name"]] if "matchLabels" in selector else []
        for expression in selector.get("matchExpressions", []):
            assert (expression["key"], expression["operator"]) == ("app.kubernetes.io/name", "In")
            roles += expression["values"]
        for role in roles:
            assert role not in read
            read[role] = endpoint["port"]
            assert endpoint["port"] in {port["name"] for port in container(role)["ports"]}
            labels = WORKLOADS[role]["spec"]["template"]["metadata"]["labels"]
            assert labels[monitor["spec"]["jobLabel"]] == "carillon", "the rules and boards name this job"
        assert {"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "instance"} in endpoint["relabelings"]
    assert read == {role: "metrics" if role == "console" else "operations" for role in ROLES}


def test_the_rules_are_those_of_deploy_alerts() -> None:
    """A change of them needs the command below."""
    (rule,) = [one for one in objects("monitoring") if one["kind"] == "PrometheusRule"]
    rules = yaml.safe_load((ROOT / "deploy/alerts.yml").read_text())
    assert rule["spec"] == rules, "run python deploy/kubernetes_rules.py"


def test_certificates_have_the_names_and_the_role_that_calls_need() -> None:
    made = objects("cert-manager")
    issuers = {one["metadata"]["name"] for one in made if one["kind"] == "Issuer"}
    certificates = {one["metadata"]["name"]: one["spec"] for one in made if one["kind"] == "Certificate"}
    for role in ROLES:
        spec = certificates.pop(f"carillon-tls-{role}")
        secrets = {
            volume["name"]: volume["secret"]["secretName"] for volume in pod(role)["volumes"] if "secret" in volume
        }
        assert spec["secretName"] == secrets["tls"]
        assert spec["uris"] == [f"{ROLE_URI}{role}"]
        assert spec["issuerRef"] == {"name": "carillon-authority", "kind": "Issuer"}
        assert {"server auth", "client auth"} <= set(spec["usages"])
        if role in DEFAULT_ADDRESSES:
            pods = [f"{role}-{index}.{role}" for index in range(WORKLOADS[role]["spec"]["replicas"])]
            assert spec["dnsNames"] == pods
            assert {address.partition(":")[0] for address in role_addresses(role, COMMON)} <= set(pods)
    gateway = certificates.pop("carillon-gateway-tls")
    assert gateway["secretName"] in {
        each["secret"]["secretName"] for each in pod("gateway")["volumes"] if "secret" in each
    }
    authority = certificates.pop("carillon-authority")
    assert (authority["isCA"], authority["issuerRef"]["name"] in issuers, certificates) == (True, True, {})
    (signs,) = [one["spec"]["ca"] for one in made if one["kind"] == "Issuer" and "ca" in one["spec"]]
    assert signs["secretName"] == authority["secretName"]


def test_ingresses_lead_to_ports_of_services_under_the_consoles_addresses() -> None:
    made = {one["metadata"]["name"]: one["spec"] for one in objects("ingress")}
    led: dict[str, dict[str, str]] = {}
    for spec in made.values():
        assert sorted(host for tls in spec["tls"] for host in tls["hosts"]) == sorted(r["host"] for r in spec["rules"])
        for rule in spec["rules"]:
            (path,) = rule["http"]["paths"]
            service = path["backend"]["service"]
            led.setdefault(service["name"], {})[service["port"]["name"]] = rule["host"]
    for service, ports in led.items():
        assert ports.keys() == {port["name"] for port in OBJECTS["Service", service]["spec"]["ports"]}
    console = {each["name"]: each.get("value") for each in container("console")["env"]}
    assert console["CARILLON_CONSOLE_URL"] == f"https://{led['console']['console']}"
    assert console["CARILLON_CONSOLE_V2_URL"] == f"https://{led['edge']['v2']}"


@pytest.mark.parametrize("version", [KUBERNETES, "1.37"])
def test_objects_of_kubernetes_itself_have_the_form_of_their_kinds(version: str) -> None:
    for one in (*objects("ingress"), *objects("autoscaling")):
        kubernetes_validate.validate(json.loads(json.dumps(one)), version, strict=True)


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
def test_an_overlay_may_have_all_components(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    (tmp_path / "mine").mkdir()
    overlay = {"resources": ["../kubernetes"], "components": [f"../kubernetes/{name}" for name in COMPONENTS]}
    (tmp_path / "mine/kustomization.yaml").write_text(yaml.safe_dump(overlay))
    command = [str(KUBECTL), "kustomize", str(tmp_path / "mine")]
    made = list(yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    assert {one["metadata"]["namespace"] for one in made if one["kind"] != "Namespace"} == {"carillon"}
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in made}
    target = by_name["HorizontalPodAutoscaler", "edge"]["spec"]["scaleTargetRef"]
    scaled = by_name[target["kind"], target["name"]]["spec"]
    assert "replicas" not in scaled, "each apply would undo what the autoscaler has done"
    page = (ROOT / "docs/operators/kubernetes.md").read_text()
    assert all(f"deploy/kubernetes/{name}]" in page for name in COMPONENTS)
