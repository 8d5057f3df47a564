"""Each role as its own user of Kafka and with its own certificate: all of them work, and a stolen one does no harm."""

import asyncio
import contextlib
import json
import re
import subprocess
from collections.abc import Iterator
from functools import partial

import pytest

from services.domain.settings import Settings, load
from services.domain.topics import ACCOUNTS, APPS, DEVICES, PUSHES, TOPICS
from services.errors import PermissionDeniedError
from services.log.kafka.log import KafkaLog
from services.log.port import NewRecord, Partition
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppServer
from testkit.installation.processes import CARILLON, Installation
from testkit.kafka.broker import AUTHORIZED, kafka
from testkit.ports import free_ports
from testkit.waiting import until
from testkit.webhook_receiver import WebhookReceiver
from tests.journeys.test_push import audited, message, shown

pytestmark = [pytest.mark.kafka, pytest.mark.long]


@pytest.fixture(scope="module")
def receiver() -> WebhookReceiver:
    """A receiver at a port that the installation knows; the test that needs it starts it."""
    return WebhookReceiver(*free_ports(1))


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, receiver: WebhookReceiver) -> Iterator[Installation]:
    """A process for each of the ten roles."""
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(kafka(tmp_path_factory.mktemp("broker"), AUTHORIZED))
        made = Installation(
            tmp_path_factory.mktemp("roles"), broker.at("SASL_PLAINTEXT"), console=True, kafka_users=broker
        )
        made.env["CARILLON_WEBHOOK_HOSTS"] = receiver.host
        stack.enter_context(contextlib.closing(made))
        made.start()
        yield made
        made.stop()


def command(installation: Installation, of: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an operator's command with the settings, the password and the certificate of a role, or of `operator`."""
    return subprocess.run(
        [CARILLON, *arguments],
        env=installation.env if of == "operator" else installation.env_of(of),
        cwd=installation.data,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


async def test_a_push_reaches_a_device_and_its_audit_with_every_role_under_its_own_user(
    installation: Installation,
) -> None:
    app = installation.create_app()
    server = AppServer(installation.v2_url)
    device = VirtualDevice(installation.gateway_url, app.appkey)
    await device.connect()
    assert (await device.request({"type": "set_alias", "alias": "a"}))["type"] == "ok"
    assert (await device.request({"type": "add_tags", "tags": [1]}))["type"] == "ok"
    for scope, target in ((5, {"token": {"android": device.token}}), (3, {"alias": ["a"]}), (6, {"tag": [[1]]})):
        sent = await server.push(message(app, scope, f"scope {scope}", **target), app.secret_key)
        assert sent["result"] == 0, sent
        assert (await shown(device))["content"] == f"scope {scope}"
    await audited(installation, int(sent["id"]), "sent", "received")
    await device.close()
    await server.close()
    installation.carillon("user", "add", "alice", "--administrator")
    status = json.loads(installation.carillon("status", "--json"))
    assert {each["role"] for each in status["instances"]} == {"registry", "targeting", "scheduling", "delivery"}
    for name in installation.names:
        assert "Kafka does not let" not in installation.output(name).read_text(), name


async def test_the_events_of_a_push_reach_a_webhook(installation: Installation, receiver: WebhookReceiver) -> None:
    app = installation.create_app()
    await receiver.start()
    kinds = ("--kind", "push.accepted", "--kind", "message.received", "--kind", "push.finished")
    await asyncio.to_thread(installation.carillon, "webhook", "add", app.appkey, receiver.url, *kinds)
    while "not begun yet" in await asyncio.to_thread(installation.carillon, "webhook", "list", app.appkey):
        pass
    server = AppServer(installation.v2_url)
    device = VirtualDevice(installation.gateway_url, app.appkey)
    await device.connect()
    sent = await server.push(message(app, 5, "Storm", token={"android": device.token}), app.secret_key)
    assert (await shown(device))["content"] == "Storm"
    to_all = await server.push(message(app, 1, "to all"), app.secret_key)
    assert (await shown(device))["content"] == "to all"
    await receiver.until_events(6)
    assert {(event["type"], event["data"]["msgid"]) for event in receiver.events} == {
        (kind, int(push["id"]))
        for push in (sent, to_all)
        for kind in ("push.accepted", "message.received", "push.finished")
    }
    await device.close()
    await server.close()
    await receiver.stop()


@pytest.mark.parametrize("role", ["gateway", "edge", "targeting", "analytics"])
def test_the_settings_of_a_role_carry_out_no_operators_command(installation: Installation, role: str) -> None:
    app = installation.create_app()
    for arguments in (
        ("app", "rotate-secret", app.appkey),
        ("app", "list"),
        ("user", "add", f"mallory-{role}", "--administrator"),
        ("audit", "app", app.appkey),
    ):
        done = command(installation, role, *arguments)
        assert done.returncode != 0, arguments
        assert done.stdout == ""
        assert done.stderr.startswith(f"Error: {role} (CN={role}) may not call /protos.")


@pytest.mark.parametrize("role", ["gateway", "edge", "targeting", "analytics", "webhooks"])
async def test_the_log_refuses_what_a_role_may_not_append(installation: Installation, role: str) -> None:
    settings = load(Settings, {n: v for n, v in installation.env_of(role).items() if n.startswith("CARILLON_KAFKA_")})
    assert settings.kafka_bootstrap is not None
    log = await KafkaLog.connect(settings.kafka_bootstrap, TOPICS, 8, security=settings.kafka_security())
    for topic in (ACCOUNTS, APPS, DEVICES, PUSHES):
        before = await log.ends([Partition(topic.name, 0)])
        with pytest.raises(PermissionDeniedError, match=f"does not let the user carillon-{role} append to the topic"):
            await log.append([NewRecord(topic.name, 0, b"k", b"forged")])
        assert await log.ends([Partition(topic.name, 0)]) == before
    await log.close()


async def test_a_cluster_gets_other_keys_and_a_gateway_without_its_new_file_loses_no_device(
    installation: Installation,
) -> None:
    app, server = installation.create_app(), AppServer(installation.v2_url)
    installation.carillon("keys", "export", "--device-keys", "gateway.key")
    installation.env["CARILLON_DEVICE_KEYS_FILE"] = str(installation.data / "gateway.key")
    installation.stop("gateway")
    await asyncio.to_thread(installation.start, "gateway")
    del installation.env["CARILLON_DEVICE_KEYS_FILE"]
    device = VirtualDevice(installation.gateway_url, app.appkey)
    await device.connect()
    token, key = device.token, device.key

    prepared = json.loads(installation.carillon("keys", "prepare", "--json"))
    refused = command(installation, "operator", "keys", "rotate", "--to", prepared["to"])
    assert refused.returncode == 1
    named = refused.stderr.partition("these processes lack a next key: ")[2].partition(". Give")[0]
    assert re.fullmatch(r"gateway on [^;]+", named), refused.stderr
    rotated = json.loads(installation.carillon("keys", "rotate", "--to", prepared["to"], "--yes", "--json"))
    assert (rotated["already_switched"], rotated["finished"]) == (False, False)
    assert rotated["apps_sealed"] >= 1
    installation.supervised = True
    try:
        ended = await until(partial(_ended, installation, "gateway"))
        assert "Give this process the file that `carillon keys export` writes now" in ended
        await asyncio.to_thread(installation.wait_ready, "gateway")
    finally:
        installation.supervised = False

    async def has_new_key() -> bool:
        return device.key != key

    await until(has_new_key)
    assert device.token == token
    assert (await server.push(message(app, 1, "after"), app.secret_key))["result"] == 0
    assert (await shown(device))["content"] == "after"
    early = installation.carillon("keys", "rotate", "--finish", "--yes", "--json", check=False)
    assert early == "", "refused within ten minutes"
    edge = command(installation, "edge", "keys", "rotate", "--to", prepared["to"])
    assert edge.returncode != 0, "only operators rotate keys"
    await device.close()
    await server.close()


async def _ended(installation: Installation, name: str) -> str | None:
    """Return the last line of a process that has ended, which is started again."""
    return installation.restart_ended(name).get(name)
