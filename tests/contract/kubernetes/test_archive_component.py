"""deploy/kubernetes/archive: each role reads the archive's volume, and a job of the day writes it."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from carillon.archive import archive
from carillon.commands.acls import PASSWORD_FILE
from carillon.roles import ROLES, role_definition
from edge.settings import EdgeSettings
from services.domain.settings import load
from services.log.archive.store import STATES_FOLDER
from testkit.certificates import Authority
from testkit.repository import ROOT
from tests.contract.kubernetes.test_roles import unhashed
from tests.contract.packaging.container_files import image_settings

KUBECTL = shutil.which("kubectl")
NAME = "carillon-archive"
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what Kustomize makes of an overlay with the component."""
    directory = tmp_path_factory.mktemp("kustomize")
    shutil.copytree(ROOT / "deploy/kubernetes", directory / "kubernetes")
    (directory / "mine").mkdir()
    overlay = {"resources": ["../kubernetes"], "components": ["../kubernetes/archive"]}
    (directory / "mine/kustomization.yaml").write_text(yaml.safe_dump(overlay))
    command = [str(KUBECTL), "kustomize", str(directory / "mine")]
    made = yaml.safe_load_all(unhashed(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return {(one["kind"], one["metadata"]["name"]): one for one in made}


def mounted(template: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the mounts of the archive's volume in a pod's only container, by their paths."""
    (container,) = template["spec"]["containers"]
    volumes = [each for each in template["spec"]["volumes"] if "persistentVolumeClaim" in each]
    names = [each["name"] for each in volumes if each["persistentVolumeClaim"]["claimName"] == NAME]
    mounts = [dict(mount) for mount in container["volumeMounts"] if mount["name"] in names]
    return sorted(mounts, key=lambda mount: str(mount["mountPath"]))


def test_every_role_reads_the_volume_that_the_job_writes(objects: dict[tuple[str, str], Any]) -> None:
    path = objects["ConfigMap", "carillon-settings"]["data"]["CARILLON_KAFKA_ARCHIVE_DIR"]
    workloads = {name: one for (kind, name), one in objects.items() if kind in ("StatefulSet", "Deployment")}
    assert workloads.keys() == ROLES.keys()
    for role, one in workloads.items():
        everything, *states = mounted(one["spec"]["template"])
        assert (everything["mountPath"], everything["readOnly"]) == (path, True)
        copied = (replay := role_definition(role).replay) is not None and replay.is_one_directory
        writes = [(mount["mountPath"], mount["subPath"], mount.get("readOnly")) for mount in states]
        assert writes == ([(f"{path}/{STATES_FOLDER}", STATES_FOLDER, None)] if copied else []), role
    job = objects["CronJob", NAME]["spec"]
    (mount,) = mounted(job["jobTemplate"]["spec"]["template"])
    assert (mount["mountPath"], mount.get("readOnly")) == (path, None)
    assert job["concurrencyPolicy"] == "Forbid"
    claim = objects["PersistentVolumeClaim", NAME]["spec"]
    assert claim["accessModes"] == ["ReadWriteMany"]


def test_the_job_is_a_command_that_accepts_its_settings(objects: dict[tuple[str, str], Any], tmp_path: Path) -> None:
    (container,) = objects["CronJob", NAME]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    program, *options = container["args"]
    assert program == archive.name
    archive.make_context(program, options)
    (source,) = container["envFrom"]
    given = objects["ConfigMap", source["configMapRef"]["name"]]["data"]
    own = {variable["name"]: variable["value"] for variable in container["env"]}
    env = {**image_settings(), **given, **own, "CARILLON_KAFKA_ARCHIVE_DIR": str(tmp_path)}
    (tmp_path / PASSWORD_FILE).write_text("secret\n")
    env["CARILLON_KAFKA_SASL_PASSWORD_FILE"] = str(tmp_path / PASSWORD_FILE)
    env["CARILLON_KAFKA_TLS_AUTHORITY"] = str(Authority(tmp_path / "authority").file)
    loaded = load(EdgeSettings, env)
    assert (loaded.archive_path, loaded.kafka_sasl_user) == (tmp_path, "carillon-archive")
    assert loaded.persons_key_file is None, "it moves sealed values as they are stored"


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_its_objects_have_the_form_of_their_kinds(objects: dict[tuple[str, str], Any], version: str) -> None:
    for key in (
        ("CronJob", NAME),
        ("PersistentVolumeClaim", NAME),
        ("Deployment", "edge"),
        ("StatefulSet", "registry"),
    ):
        kubernetes_validate.validate(json.loads(json.dumps(objects[key])), version, strict=True)
