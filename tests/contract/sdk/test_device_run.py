"""`carillon device run` with the real gateway."""

import asyncio
import json
import os
import signal
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from carillon.commands.device import device
from protos.push.v1.push_pb2 import Message
from protos.registry.v1.apps_pb2 import IDENTITY_MODE_REQUIRE
from testkit.certificates import Authority
from testkit.gateway.role import ANDROID, RunningGateway
from testkit.gateway.scripted_gateway import ScriptedGateway
from testkit.proofs import ProofKey


class Running:
    """A process that runs `carillon device run`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    @classmethod
    async def start(cls, real_gateway: RunningGateway, *options: str) -> "Running":
        code = "from carillon.commands.device import device; device()"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, "run", *options,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "CARILLON_GATEWAY_PORT": str(real_gateway.port)},
        )  # fmt: skip
        return cls(process)

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            return (await self.process.stdout.readline()).decode()

    async def end(self) -> tuple[int, str, str]:
        async with asyncio.timeout(60):
            out, err = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()


async def test_a_virtual_device_proves_its_alias_and_tags(real_gateway: RunningGateway, tmp_path: Path) -> None:
    real_gateway.clock.move(time.time() - real_gateway.clock.now_ms() / 1000)
    for key in (ProofKey(), ProofKey(ed25519=True)):
        await real_gateway.set_identity(IDENTITY_MODE_REQUIRE, key.public_pem, tags=["user:*", "7"])
        private = tmp_path / "private.pem"
        private.write_text(key.private_pem)
        options = f"--alias anna --stag user:anna --tag 7 --tag 8 --json --proof-key {private}"
        running = await Running.start(real_gateway, "--appkey", ANDROID, *options.split())
        printed: list[dict[str, Any]] = [json.loads(await running.line()) for _ in range(4)]
        assert [each["type"] for each in printed] == ["welcome", "ok", "ok", "ok"], printed
        device = await real_gateway.device(printed[0]["token"])
        assert (device.alias, device.alias_proven, list(device.proven_stags)) == ("anna", True, ["user:anna"])
        running.process.terminate()
        await running.end()
    given = ("--appkey", ANDROID, "--alias", "anna", "--json", "--proof", key.proof(ANDROID, "bob"))
    running = await Running.start(real_gateway, *given)
    refused = [json.loads(await running.line()) for _ in range(2)][1]
    assert (refused["code"], refused["desc"]) == (401, "proof: it is for another alias: sub must be the alias")
    running.process.terminate()
    await running.end()


def test_a_key_that_makes_no_proofs_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    for text, told in (("hello", "no private key in PEM form"), (ProofKey().public_pem, "no private key in PEM form")):
        file.write_text(text)
        outcome = CliRunner().invoke(device, ["run", "--appkey", "1", "--alias", "a", "--proof-key", str(file)])
        assert (outcome.exit_code, told in " ".join(outcome.output.split())) == (2, True), outcome.output
    both = ["run", "--appkey", "1", "--proof-key", str(file), "--proof", "x"]
    assert "exclude each other" in CliRunner().invoke(device, both).output


async def test_the_command_prints_a_json_object_for_each_event(real_gateway: RunningGateway) -> None:
    options = "--alias anna --tag 5 --tag -7 --stag news --attribute brand=Acme --json"
    running = await Running.start(real_gateway, "--appkey", ANDROID, *options.split())
    printed: list[dict[str, Any]] = [json.loads(await running.line()) for _ in range(4)]
    assert [each["type"] for each in printed] == ["welcome", "ok", "ok", "ok"]
    device = await real_gateway.device(printed[0]["token"])
    assert (device.alias, list(device.tags), list(device.stags)) == ("anna", [-7, 5], ["news"])
    assert device.attributes.brand == "Acme"
    (connection,) = await real_gateway.delivery.until(real_gateway.delivery.connections)
    real_gateway.delivery.send(Message(is_notif=True, content="hi"), [connection], [42])
    push = json.loads(await running.line())
    assert (push["type"], push["msgid"], push["content"]) == ("push", 42, "hi")
    await real_gateway.delivery.until(
        lambda: sorted(row[1:] for row in real_gateway.delivery.reports()) == [(42, 2), (42, 3)]
    )
    running.process.send_signal(signal.SIGINT)
    assert (await running.end())[::2] == (0, "")


@pytest.mark.long
async def test_the_command_prints_readable_lines_for_many_devices(real_gateway: RunningGateway) -> None:
    running = await Running.start(real_gateway, "--appkey", ANDROID, "--count", "3")
    lines = [await running.line() for _ in range(3)]
    assert sorted(line.split()[2] for line in lines) == ["1", "2", "3"]
    assert all("welcome" in line and "key=" not in line for line in lines)
    running.process.send_signal(signal.SIGTERM)
    assert (await running.end())[0] == 0


@pytest.mark.parametrize("with_later_line", [False, True])
async def test_the_command_ends_when_nobody_reads_its_output(
    real_gateway: RunningGateway, with_later_line: bool
) -> None:
    """As with `| head -1`, also when there is nothing more to print."""
    code = "from carillon.commands.device import device; device()"
    ours, theirs = os.pipe()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, "run", "--appkey", ANDROID,
        stdout=theirs, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "CARILLON_GATEWAY_PORT": str(real_gateway.port)},
    )  # fmt: skip
    os.close(theirs)
    assert b"welcome" in await asyncio.to_thread(os.read, ours, 4096)
    (connection,) = await real_gateway.delivery.until(real_gateway.delivery.connections)
    os.close(ours)
    if with_later_line:
        real_gateway.delivery.send(Message(content="unread"), [connection], [7])
    async with asyncio.timeout(60):
        _, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")


async def test_the_command_ends_with_1_when_the_gateway_refuses(real_gateway: RunningGateway) -> None:
    running = await Running.start(real_gateway, "--appkey", "1999999999", "--json")
    code, out, err = await running.end()
    assert code == 1
    assert err == "unauthorized: the gateway does not accept this appkey, or this token with this key\n"
    assert json.loads(out.splitlines()[0])["type"] == "goodbye"


@pytest.mark.long
async def test_a_stored_device_that_is_refused_is_to_be_deleted(real_gateway: RunningGateway, tmp_path: Path) -> None:
    stored = tmp_path / f"{ANDROID}-1.json"
    stored.write_text('{"token": "t", "key": "revoked", "msgids": []}')
    options = ("--appkey", ANDROID, "--state", str(tmp_path))
    code, _, err = await (await Running.start(real_gateway, *options)).end()
    told = f"delete the device's file {ANDROID}-NUMBER.json in {tmp_path}"
    assert (code, told in err) == (1, True), err
    stored.unlink()
    code, _, err = await (await Running.start(real_gateway, "--appkey", "1999999999", *options[2:])).end()
    assert (code, "delete" in err) == (1, False), err


WRONG = [
    (["--attribute", "colour=red"], 2, "brand"),
    (["--url", "http://localhost/"], 1, "'http://localhost/' is no ws:// or wss:// URL"),
    (["--url", "wss://localhost/", "--ca", __file__], 2, "holds no certificate"),
    (["--url", "ws://localhost/", "--ca", __file__], 2, "is not wss://"),
]


@pytest.mark.parametrize(("options", "code", "text"), WRONG)
def test_the_command_names_a_wrong_option(options: list[str], code: int, text: str) -> None:
    refused = CliRunner().invoke(device, ["run", "--appkey", ANDROID, *options])
    assert (refused.exit_code, text in refused.stderr) == (code, True), refused.stderr


async def test_with_a_state_directory_the_same_devices_reconnect(real_gateway: RunningGateway, tmp_path: Path) -> None:
    options = ("--appkey", ANDROID, "--state", str(tmp_path / "devices"), "--json")
    running = await Running.start(real_gateway, *options)
    first = json.loads(await running.line())
    (connection,) = await real_gateway.delivery.until(real_gateway.delivery.connections)
    real_gateway.delivery.send(Message(content="once"), [connection], [7])
    assert json.loads(await running.line())["content"] == "once"
    await real_gateway.delivery.until(real_gateway.delivery.reports)
    running.process.kill()
    await running.end()
    (file,) = (tmp_path / "devices").iterdir()
    assert (file.name, file.stat().st_mode & 0o777) == (f"{ANDROID}-1.json", 0o600)
    running = await Running.start(real_gateway, *options)
    again = json.loads(await running.line())
    assert (again["token"], again["new"]) == (first["token"], False)
    connection = (await real_gateway.delivery.until(lambda: real_gateway.delivery.connections()[1:]))[0]
    real_gateway.delivery.send(Message(content="once"), [connection], [7])
    real_gateway.delivery.send(Message(content="twice"), [connection], [8])
    assert json.loads(await running.line())["content"] == "twice"
    running.process.send_signal(signal.SIGTERM)
    assert (await running.end())[0] == 0
    file.write_text("{")
    code, _, err = await (await Running.start(real_gateway, *options)).end()
    assert (code, str(file) in err) == (1, True)


async def test_tls_with_a_given_certificate_authority(real_gateway: RunningGateway, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    issued = authority.issue("gateway")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    gateway = ScriptedGateway(context)
    await gateway.open()
    running = await Running.start(real_gateway, "--appkey", ANDROID, "--url", gateway.url, "--ca", str(authority.file))
    await gateway.welcome_next()
    assert "welcome" in await running.line()
    running.process.send_signal(signal.SIGTERM)
    assert (await running.end())[0] == 0
    await gateway.close()
