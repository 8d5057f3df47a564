"""deploy/kubernetes/operator: a pod in which the commands of operators call the roles."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from carillon.commands.acls import PASSWORD_FILE
from carillon.commands.certs import operator
from services.domain.settings import Settings, addresses, load
from testkit.certificates import Authority
from testkit.repository import ROOT
from tests.contract.kubernetes.test_roles import COMMON
from tests.contract.packaging.container_files import image_settings

KUBERNETES = ROOT / "deploy/kubernetes"
KUBECTL = shutil.which("kubectl")
POD: dict[str, Any] = yaml.safe_load((KUBERNETES / "operator/operator.yaml").read_text())
(CONTAINER,) = POD["spec"]["containers"]


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_the_pod_has_the_form_of_its_kind(version: str) -> None:
    kubernetes_validate.validate(json.loads(json.dumps(POD)), version, strict=True)


def test_the_pod_is_restricted_as_those_of_the_roles() -> None:
    template = yaml.safe_load((KUBERNETES / "every-role.yaml").read_text())["spec"]["template"]["spec"]
    assert POD["spec"]["securityContext"] == template["securityContext"]
    assert POD["spec"]["automountServiceAccountToken"] is False
    assert CONTAINER["securityContext"] == template["containers"][0]["securityContext"]


def test_commands_find_the_roles_and_their_own_certificate(tmp_path: Path) -> None:
    (source,) = CONTAINER["envFrom"]
    assert source == {"configMapRef": {"name": "carillon-settings"}}
    env = {**image_settings(), **COMMON, **{each["name"]: each["value"] for each in CONTAINER["env"]}}
    assert addresses("registry", env) == ["registry-0.registry:7401"]
    mounts = {mount["mountPath"]: mount["name"] for mount in CONTAINER["volumeMounts"]}
    secrets = {one["name"]: one["secret"]["secretName"] for one in POD["spec"]["volumes"] if "secret" in one}
    files = ("CARILLON_TLS_CERT", "CARILLON_TLS_KEY", "CARILLON_TLS_AUTHORITY")
    assert {secrets[mounts[str(Path(env[file]).parent)]] for file in files} == {"carillon-tls-operator"}
    issued = Authority(tmp_path / "authority").issue("alice")
    own = dict(zip(files, map(str, (issued.certificate, issued.key, issued.authority)), strict=True))
    assert Path(env["CARILLON_KAFKA_SASL_PASSWORD_FILE"]).parent == Path(env["CARILLON_KAFKA_TLS_AUTHORITY"]).parent
    assert secrets[mounts[str(Path(env["CARILLON_KAFKA_TLS_AUTHORITY"]).parent)]] == "carillon-kafka-operator"
    assert secrets[mounts[str(Path(env["CARILLON_PERSONS_KEY_FILE"]).parent)]] == "carillon-persons-key"
    (tmp_path / PASSWORD_FILE).write_text("secret\n")
    own["CARILLON_KAFKA_SASL_PASSWORD_FILE"] = str(tmp_path / PASSWORD_FILE)
    own["CARILLON_KAFKA_TLS_AUTHORITY"] = str(issued.authority)
    loaded = load(Settings, {**env, **own})
    assert loaded.tls() is not None
    assert loaded.kafka_sasl_user == "carillon-operator"
    assert mounts[env["CARILLON_DATA_DIR"]] == "data"
    assert "command" in CONTAINER, "the image's entry point would take arguments for a command of carillon"


def test_the_page_says_how_the_secret_and_the_pod_are_made() -> None:
    page = (ROOT / "docs/operators/kubernetes.md").read_text()
    assert "carillon certs certs --operator alice " in page
    assert f"carillon-tls-operator --from-file=certs/{operator('alice').name}\n" in page
    assert "components: [../carillon/deploy/kubernetes/operator]" in page
    assert f"exec -it {POD['metadata']['name']} -- carillon app list" in page


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
def test_an_overlay_with_the_component_has_the_pod(tmp_path: Path) -> None:
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    (tmp_path / "mine").mkdir()
    overlay = {
        "resources": ["../kubernetes"],
        "components": ["../kubernetes/archive", "../kubernetes/operator"],
        "images": [{"name": "carillon", "newName": "registry.example.com/carillon", "newTag": "1.2.3"}],
    }
    (tmp_path / "mine/kustomization.yaml").write_text(yaml.safe_dump(overlay))
    command = [str(KUBECTL), "kustomize", str(tmp_path / "mine")]
    made = list(yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    (pod,) = [one for one in made if one["kind"] == "Pod"]
    assert pod["spec"]["containers"][0]["image"] == "registry.example.com/carillon:1.2.3"
    (settings,) = [one for one in made if one["kind"] == "ConfigMap"]
    assert pod["spec"]["containers"][0]["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
    assert {one["metadata"]["namespace"] for one in made if one["kind"] != "Namespace"} == {"carillon"}
