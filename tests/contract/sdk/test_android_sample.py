"""The sample app for Android: the APK as `make sdk` makes it, its manifest, and why it is left out elsewhere."""

import asyncio
import os
import re
import struct
import subprocess
import zipfile
from asyncio.subprocess import PIPE
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

from setup import android_sample
from setup.android_sample import MODULE, merged_manifest
from testkit.gateway.scripted_gateway import ScriptedConnection, ScriptedGateway, push
from testkit.kotlin_sdk import run_on_android, sample_app
from testkit.programs import needed
from tests.contract.sdk.test_android import PERMISSIONS

BOUND_S = 120
"""Robolectric takes some seconds to make an Android."""

SMALL_BYTES = 100_000
FEW_METHODS = 1500
_METHODS_AT = 88
"""Where a dex file's head counts its methods, those of Android that it calls among them."""

_ANDROID = "{http://schemas.android.com/apk/res/android}"
_NAME = f"{_ANDROID}name"


def manifest() -> ElementTree.Element:
    return merged_manifest(MODULE / "src/main/AndroidManifest.xml")


def components() -> dict[str, ElementTree.Element]:
    return {str(each.get(_NAME)): each for each in manifest().findall("application/*")}


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_the_apk_is_small_signed_and_has_each_class_that_android_creates(tmp_path: Path) -> None:
    module = sample_app().folder
    if why := android_sample.impossible():
        pytest.skip(why)
    apk = tmp_path / "sample.apk"
    android_sample.build(module, apk, tmp_path / "key")
    assert apk.stat().st_size <= SMALL_BYTES
    with zipfile.ZipFile(apk) as archive:
        assert set(archive.namelist()) >= {"AndroidManifest.xml", "classes.dex", "resources.arsc"}
        dex = archive.read("classes.dex")
        assert not [name for name in archive.namelist() if name.endswith(".dex") and name != "classes.dex"]
    assert struct.unpack_from("<I", dex, _METHODS_AT)[0] <= FEW_METHODS
    for name in ["dev.carillon.sample.SampleApp", *components()]:
        assert f"L{name.replace('.', '/')};".encode() in dex

    signers = subprocess.check_output([needed("apksigner"), "verify", "--print-certs", apk], text=True)
    assert "CN=Sample" in signers
    subprocess.run([needed("zipalign"), "-c", "4", apk], check=True, capture_output=True)
    badge = subprocess.check_output([needed("aapt2"), "dump", "badging", apk], text=True)
    assert re.findall(r"^package: name='([\w.]+)'", badge, re.MULTILINE) == ["dev.carillon.sample"]
    assert re.findall(r"^(?:sdkVersion|targetSdkVersion):'(\d+)'", badge, re.MULTILINE) == ["24", "35"]
    assert re.findall(r"^launchable-activity: name='([\w.]+)'", badge, re.MULTILINE) == [
        "dev.carillon.sample.MainActivity"
    ]


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("level", ["34", "35"])
async def test_a_link_connects_the_app_which_shows_what_comes(gateway: ScriptedGateway, level: str) -> None:
    module = await asyncio.to_thread(sample_app)
    link = f"carillon://connect?url={quote(gateway.url, safe='')}&appkey=1000000001&alias=alice"
    command = run_on_android(module, "dev.carillon.sample.SampleRun", level, f"-Dlink={link}")
    phone = await asyncio.create_subprocess_exec(*command, cwd=module.folder, stdout=PIPE)
    printed: list[str] = []

    async def says(line: str) -> None:
        assert phone.stdout is not None
        async with asyncio.timeout(BOUND_S):
            while (said := (await phone.stdout.readline()).decode()) != f"{line}\n":
                printed.append(said)
                assert said, "".join(printed)

    async def answer(connection: ScriptedConnection) -> None:
        while True:
            request = await connection.next()
            if "id" in request:
                connection.send({"type": "ok", "id": request["id"], "alias": "alice", "tags": [], "stags": []})

    try:
        await says("connecting")
        connection = await gateway.welcome_next(token="t-7")
        answers = asyncio.create_task(answer(connection))
        await says("token t-7")
        connection.send(push(5, "Guten Tag", is_notif=1))
        await says("shown Guten Tag")
        connection.send(push(6, "for the app alone"))
        await says("fields [ws://other.example.org/, 2000000002, bob]")
        answers.cancel()
        async with asyncio.timeout(BOUND_S):
            rest, _ = await phone.communicate()
        assert phone.returncode == 0, rest.decode()
    finally:
        if phone.returncode is None:
            phone.kill()
            await phone.wait()


def test_the_apps_page_alone_can_be_opened_by_others() -> None:
    exported = {name for name, each in components().items() if each.get(f"{_ANDROID}exported") == "true"}
    assert exported == {"dev.carillon.sample.MainActivity"}
    assert all(each.get(f"{_ANDROID}exported") for each in components().values())
    filters = [
        {str(each.get(_NAME)).rpartition(".")[2] for each in found if each.tag != "data"}
        for found in manifest().iter("intent-filter")
    ]
    assert filters == [{"MAIN", "LAUNCHER"}, {"VIEW", "DEFAULT", "BROWSABLE"}]
    (link,) = manifest().iter("data")
    assert {name.removeprefix(_ANDROID): value for name, value in link.attrib.items()} == {
        "scheme": "carillon",
        "host": "connect",
    }


def test_it_has_the_sdks_permissions_alone_and_no_backup_of_its_settings() -> None:
    permissions = [
        str(each.get(_NAME)).removeprefix("android.permission.") for each in manifest().iter("uses-permission")
    ]
    assert sorted(permissions) == sorted(PERMISSIONS)
    (application,) = manifest().findall("application")
    assert application.get(f"{_ANDROID}allowBackup") == "false"


def test_it_says_why_the_app_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert android_sample.impossible() == "aapt2 is not installed, and this machine has no apt-get to install it"
    for name in ("apt-get", "zipalign", "apksigner"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert android_sample.impossible() == "aapt2 is not installed, and only root may install it"
    (tmp_path / "apksigner").unlink()
    assert android_sample.main([str(tmp_path / "sample.apk")]) == 0
    assert capsys.readouterr().err.endswith("only root may install it. To build it: apt-get install aapt apksigner\n")
    (tmp_path / "apt-get").rename(tmp_path / "brew")
    assert android_sample.main([str(tmp_path / "sample.apk")]) == 0
    assert capsys.readouterr().err.endswith("To build it: put build-tools/VERSION of an Android SDK on the PATH\n")


def test_root_installs_the_missing_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CARILLON_TEST_INSTALL", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    script = f'#!/bin/sh\n[ $1 = update ] && exit\necho "$*" > {tmp_path}/called\n'
    script += "".join(f"/bin/cp {tmp_path}/apt-get {tmp_path}/{name}\n" for name in ("aapt2", "zipalign", "apksigner"))
    (tmp_path / "apt-get").write_text(script)
    (tmp_path / "apt-get").chmod(0o755)
    assert android_sample.impossible() == ""
    assert (tmp_path / "called").read_text().split()[-3:] == ["aapt", "zipalign", "apksigner"]
