"""deploy/kubernetes agrees with Kubernetes' schemas, and with the settings, ports, addresses and keys that exist."""

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import msgspec
import pytest
import yaml

from carillon.commands.acls import PASSWORD_FILE
from carillon.roles import ROLES, role_definition
from carillon.serve import own_address
from services.domain import settings as common_settings
from services.domain.master_key import KeyPurpose
from services.domain.role_context import DEFAULT_ADDRESSES, ROLES_WITH_STANDBYS, role_addresses
from services.domain.settings import PREFIX, load
from services.gateway import settings as gateway_settings
from services.net.http.operations import METRICS_PORT, PATHS
from testkit.certificates import Authority
from testkit.persons import READERS_AND_WRITERS
from testkit.repository import ROOT
from tests.contract.packaging.container_files import OURS, PROJECT, image_settings

FOLDER = ROOT / "deploy/kubernetes"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
KUBECTL = shutil.which("kubectl")
KUBERNETES = "1.31"
"""The oldest version that the manifests are for."""

_MERGED_BY = {
    "containers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "env": "name",
}


def merged(base: Any, patch: Any, key: str = "") -> Any:
    """Return the strategic merge of Kubernetes: lists of named things are merged by name, others are replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {name: merged(base.get(name), patch.get(name), name) for name in [*base, *(patch.keys() - base.keys())]}
    if patch is None or base is None:
        return base if patch is None else patch
    if isinstance(base, list) and (by := _MERGED_BY.get(key)):
        named = {item[by]: item for item in base}
        for item in patch:
            named[item[by]] = merged(named.get(item[by]), item)
        return list(named.values())
    return patch


def generated() -> list[dict[str, Any]]:
    """Return the ConfigMaps that Kustomize makes, without the hash that it appends to their names."""
    maps = []
    for generator in KUSTOMIZATION["configMapGenerator"]:
        lines = [line for file in generator["envs"] for line in (FOLDER / file).read_text().splitlines()]
        pairs = [line.partition("=") for line in lines if not line.startswith("#")]
        data = {name: value for name, _, value in pairs}
        assert len(data) == len(pairs)
        maps.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data})
    return maps


def unhashed(text: str) -> str:
    """Return the output of Kustomize with the names of generated ConfigMaps as they are written."""
    return re.sub(r"\b(carillon-settings)-[a-z0-9]{10}\b", r"\1", text)


def rendered() -> list[dict[str, Any]]:
    """Return all objects with their patches, as Kustomize makes them, but for namespaces, tags and hashes."""
    objects = [one for file in KUSTOMIZATION["resources"] for one in yaml.safe_load_all((FOLDER / file).read_text())]
    objects += generated()
    for patch in KUSTOMIZATION["patches"]:
        change = {"spec": yaml.safe_load((FOLDER / patch["path"]).read_text())["spec"]}
        objects = [
            merged(one, change) if re.fullmatch(patch["target"]["kind"], one["kind"]) else one for one in objects
        ]
    return objects


OBJECTS = {(one["kind"], one["metadata"]["name"]): one for one in rendered()}
WORKLOADS = {name: one for (kind, name), one in OBJECTS.items() if kind in ("StatefulSet", "Deployment")}
COMMON: dict[str, str] = OBJECTS["ConfigMap", "carillon-settings"]["data"]


def pod(role: str) -> dict[str, Any]:
    found: dict[str, Any] = WORKLOADS[role]["spec"]["template"]["spec"]
    return found


def container(role: str) -> dict[str, Any]:
    (found,) = pod(role)["containers"]
    return dict(found)


def environment(role: str, index: int = 0) -> dict[str, str]:
    """Return the environment of the pod with this index, with the image's own."""
    pod_name = f"{role}-{index}"
    fields = {"metadata.name": pod_name, "metadata.labels['apps.kubernetes.io/pod-index']": str(index)}
    given = {**image_settings(), **COMMON}
    for variable in container(role).get("env", []):
        if "value" in variable:
            given[variable["name"]] = variable["value"].replace("$(POD_NAME)", pod_name)
        elif "fieldRef" in variable["valueFrom"]:
            given[variable["name"]] = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            given[variable["name"]] = "http://carillon:secret@clickhouse:8123/carillon"
    return given


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that loads a pod's settings as on a host with the files of its secrets and many open files."""
    tls = Authority(tmp_path / "authority").issue("any")
    password = tmp_path / PASSWORD_FILE
    password.write_text("secret\n")
    names = {"tls.crt": tls.certificate, "tls.key": tls.key, "ca.crt": tls.authority, PASSWORD_FILE: password}
    for module in (common_settings, gateway_settings):
        monkeypatch.setattr(module, "hard_file_limit", lambda: 524_288)

    def loaded(role: str, index: int = 0) -> Any:
        env = environment(role, index)
        for name, value in env.items():
            directory, _, file = value.rpartition("/")
            if file in names and directory in {mount["mountPath"] for mount in container(role)["volumeMounts"]}:
                env[name] = str(names[file])
        return load(role_definition(role).settings, env)

    return loaded


def test_every_role_is_there_and_every_file_is_used() -> None:
    assert WORKLOADS.keys() == ROLES.keys()
    for role in ROLES:
        assert container(role)["args"] == ["serve", role]
        assert container(role)["image"] == OURS[role]["image"]
        assert WORKLOADS[role]["kind"] == ("Deployment" if role in ("edge", "gateway", "console") else "StatefulSet")
    used = [*KUSTOMIZATION["resources"], *(patch["path"] for patch in KUSTOMIZATION["patches"])]
    used += [file for generator in KUSTOMIZATION["configMapGenerator"] for file in generator["envs"]]
    assert sorted([*used, "kustomization.yaml"]) == sorted(file.name for file in FOLDER.iterdir() if file.is_file())
    version = PROJECT["project"]["version"]
    assert {image["name"]: image["newTag"] for image in KUSTOMIZATION["images"]} == {
        container(role)["image"]: version for role in ROLES
    }


@pytest.mark.parametrize("version", [KUBERNETES, "1.37"])
def test_every_object_has_the_form_of_its_kind(version: str) -> None:
    for one in OBJECTS.values():
        kubernetes_validate.validate(json.loads(json.dumps(one)), version, strict=True)


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
def test_kustomize_makes_the_same_objects() -> None:
    command = [str(KUBECTL), "kustomize", str(FOLDER)]
    made = yaml.safe_load_all(unhashed(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in made}
    assert by_name.keys() == OBJECTS.keys()
    for key, one in OBJECTS.items():
        assert by_name[key]["metadata"].pop("namespace", KUSTOMIZATION["namespace"]) == KUSTOMIZATION["namespace"]
        for made_container in by_name[key].get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
            made_container["image"] = made_container["image"].partition(":")[0]
        assert in_order(by_name[key]) == in_order(one)


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
def test_the_overlay_of_the_page_changes_what_it_names(tmp_path: Path) -> None:
    page = (ROOT / "docs/operators/kubernetes.md").read_text()
    (overlay,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    shutil.copytree(FOLDER, tmp_path / "carillon/deploy/kubernetes")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/kustomization.yaml").write_text(overlay)
    command = [str(KUBECTL), "kustomize", str(tmp_path / "mine")]
    made = list(yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    (data,) = [one["data"] for one in made if one["kind"] == "ConfigMap"]
    assert data == {
        **COMMON,
        "CARILLON_KAFKA_BOOTSTRAP": "kafka.example.com:9092",
        "CARILLON_TIMEZONE": "Asia/Shanghai",
    }
    assert len({one["metadata"]["name"] for one in made if one["kind"] == "ConfigMap"} | named_in(made)) == 1
    base = subprocess.run([str(KUBECTL), "kustomize", str(FOLDER)], check=True, capture_output=True, text=True).stdout
    assert not named_in(made) & named_in(yaml.safe_load_all(base)), "a change of the settings would roll no pod"
    images = {match[1] for match in re.finditer(r"'image': '([^']+)'", str(made))}
    assert images == {f"registry.example.com/{name}:0.1.0" for name in ("carillon", "carillon-embedded")}


def named_in(objects: Iterable[dict[str, Any]]) -> set[str]:
    """Return the names of the ConfigMaps from which the pods have their environment."""
    return set(re.findall(r"'configMapRef': \{'name': '([^']+)'", str(list(objects))))


def in_order(value: Any) -> Any:
    """Return the value with its lists sorted: a merge may change their order."""
    if isinstance(value, dict):
        return {name: in_order(inner) for name, inner in value.items()}
    return (
        sorted(map(in_order, value), key=lambda one: json.dumps(one, sort_keys=True))
        if isinstance(value, list)
        else value
    )


@pytest.mark.parametrize("role", ROLES)
def test_every_setting_exists_and_has_an_accepted_value(role: str, settings: Any) -> None:
    fields = {PREFIX + field.name.upper() for field in msgspec.structs.fields(role_definition(role).settings)}
    known = fields | {f"{PREFIX}{other.upper()}_ADDR" for other in DEFAULT_ADDRESSES}
    assert {key for key in environment(role) if key.startswith(PREFIX)} <= known
    loaded = settings(role)
    assert loaded.host == "0.0.0.0"
    assert loaded.kafka_replication == 3
    assert loaded.tls_cert is not None
    assert (loaded.kafka_security_protocol, loaded.kafka_sasl_mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert loaded.kafka_sasl_user == f"carillon-{role}"


@pytest.mark.parametrize("role", DEFAULT_ADDRESSES)
def test_every_instance_has_a_shard_and_listens_where_it_is_called(role: str, settings: Any) -> None:
    workload = WORKLOADS[role]
    instances = [(settings(role, index), environment(role, index)) for index in range(workload["spec"]["replicas"])]
    shards = [loaded.shard for loaded, _ in instances]
    if role in ROLES_WITH_STANDBYS:
        assert len(shards) > 1
        assert set(shards) == {0}
    else:
        assert shards == list(range(instances[0][0].shards))
    own = [own_address(role, loaded, env) for loaded, env in instances]
    port = DEFAULT_ADDRESSES[role].rpartition(":")[2]
    assert own == [f"{role}-{index}.{workload['spec']['serviceName']}:{port}" for index in range(len(instances))]
    assert set(role_addresses(role, COMMON)) <= set(own)
    assert len(role_addresses(role, COMMON)) == instances[0][0].shards
    service = OBJECTS["Service", workload["spec"]["serviceName"]]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert [str(one["port"]) for one in service["ports"]] == [port]


def test_ports_are_those_of_the_settings(settings: Any) -> None:
    edge, gateway = settings("edge"), settings("gateway")
    expected = {role: {int(address.rpartition(":")[2])} for role, address in DEFAULT_ADDRESSES.items()}
    expected |= {"edge": set(edge.interface_ports), "gateway": {gateway.gateway_port}}
    expected["console"] = {settings("console").console_port}
    for role in ROLES:
        ports = {port["name"]: port["containerPort"] for port in container(role)["ports"]}
        assert ports["operations"] == settings(role).console_port
        metrics = {METRICS_PORT} if role == "console" else set()
        assert set(ports.values()) == expected[role] | metrics | {ports["operations"]}
        assert ("metrics" in ports) == (role == "console")
        service = OBJECTS["Service", role]["spec"]
        assert {one["port"]: ports[one["targetPort"]] for one in service["ports"]} == {
            port: port for port in expected[role]
        }


def test_the_console_knows_the_three_addresses_that_are_used_from_outside(settings: Any) -> None:
    console = settings("console")
    addresses = (console.console_url, console.console_v2_url, console.console_gateway_url)
    assert len({urlsplit(address).hostname for address in addresses}) == len(addresses)


@pytest.mark.parametrize("role", ROLES)
def test_probes_ask_the_operations_endpoint_and_a_stop_has_time(role: str, settings: Any) -> None:
    given = container(role)
    paths = {name: given[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/healthz", "readiness": "/healthz", "liveness": "/livez"}
    assert set(paths.values()) <= set(PATHS)
    assert {given[f"{name}Probe"]["httpGet"]["port"] for name in paths} == {"operations"}
    startup = given["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600
    drain_s = settings(role).drain_s
    assert drain_s >= 5, "endpoints are removed while the listeners still accept"
    assert "lifecycle" not in given
    assert pod(role)["terminationGracePeriodSeconds"] >= 60 + drain_s


@pytest.mark.parametrize("role", ROLES)
def test_one_pod_at_a_time_is_evicted_and_instances_are_on_different_hosts(role: str) -> None:
    labels = WORKLOADS[role]["spec"]["template"]["metadata"]["labels"]
    selector = {"matchLabels": {"app.kubernetes.io/name": role}}
    assert labels.items() >= selector["matchLabels"].items()
    assert WORKLOADS[role]["spec"]["selector"] == selector
    for kind in (WORKLOADS[role]["kind"], "Service", "PodDisruptionBudget"):
        assert OBJECTS[kind, role]["metadata"]["labels"] == labels, "an upgrade applies the objects of one role"
    assert OBJECTS["PodDisruptionBudget", role]["spec"] == {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": selector,
    }
    assert OBJECTS["Service", role]["spec"]["selector"] == selector["matchLabels"]
    (apart,) = pod(role)["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert apart["podAffinityTerm"] == {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    assert pod(role)["topologySpreadConstraints"] == [
        {
            "topologyKey": "topology.kubernetes.io/zone",
            "maxSkew": 1,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": selector,
        }
    ]
    assert pod(role)["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch", "a large volume delays a start"
    requests, limits = container(role)["resources"]["requests"], container(role)["resources"]["limits"]
    assert requests.keys() == {"cpu", "memory"}
    assert limits.keys() == {"memory"}, "a limit of the CPU would stop an event loop for tens of ms at a time"


@pytest.mark.parametrize("role", ROLES)
def test_each_role_gets_the_keys_and_certificates_that_it_needs(role: str, settings: Any) -> None:
    loaded = settings(role)
    files = {KeyPurpose.DEVICES: loaded.device_keys_file, KeyPurpose.SECRETS: loaded.secrets_key_file}
    assert {purpose for purpose, file in files.items() if file} == role_definition(role).keys
    mounts = {mount["mountPath"]: mount["name"] for mount in container(role)["volumeMounts"]}
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod(role)["volumes"] if "secret" in volume}
    directories = {str(Path(file).parent) for file in files.values() if file}
    assert {secrets[mounts[directory]] for directory in directories} == {
        {KeyPurpose.DEVICES: "carillon-device-keys", KeyPurpose.SECRETS: "carillon-secrets-key"}[purpose]
        for purpose in role_definition(role).keys
    }
    if role in ("registry", "accounts"):
        assert secrets[mounts[str(Path(loaded.signing_key_file).parent)]] == f"carillon-signing-key-{role}"
    else:
        assert loaded.signing_key_file is None
        assert not [name for name in secrets.values() if "signing" in name]
    assert role in READERS_AND_WRITERS
    assert secrets[mounts[str(Path(loaded.persons_key_file).parent)]] == "carillon-persons-key"
    configs = {each["name"]: each["configMap"]["name"] for each in pod(role)["volumes"] if "configMap" in each}
    assert configs[mounts[str(Path(loaded.public_keys_file).parent)]] == "carillon-public-keys"
    assert secrets[mounts["/tls"]] == f"carillon-tls-{role}"
    assert secrets[mounts["/kafka"]] == f"carillon-kafka-{role}"
    assert {mounts[directory] for directory in mounts} - {"state"} == {
        volume["name"] for volume in pod(role)["volumes"]
    }
    assert mounts[loaded.data_dir] == ("state" if WORKLOADS[role]["kind"] == "StatefulSet" else "data")


def test_the_page_names_every_secret_and_no_manifest_holds_one() -> None:
    page = (ROOT / "docs/operators/kubernetes.md").read_text()
    names = Counter(re.findall(r"secretName: ([\w-]+)", "".join(file.read_text() for file in FOLDER.glob("*.yaml"))))
    names.update({"carillon-clickhouse": 1})
    for name in names:
        kind = re.match(r"carillon-(tls|kafka)-", name)
        assert name in page or (kind and f"{kind[0]}ROLE" in page)
    assert not [name for kind, name in OBJECTS if kind == "Secret"]
