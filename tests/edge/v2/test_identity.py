"""Proofs of aliases and identity tags over HTTP, and which devices a push to an alias then reaches."""

from typing import Any

from protos.registry.v1.apps_pb2 import (
    IDENTITY_MODE_ACCEPT,
    IDENTITY_MODE_OFF,
    IDENTITY_MODE_REQUIRE,
    PLATFORM_IOS,
    App,
)
from protos.registry.v1.registry_pb2 import GetDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from testkit.apns.tokens import ios_token
from testkit.edge.http_device import HttpDevice
from testkit.edge.role import NOW_MS, EdgeInstallation
from testkit.edge.sent_pushes import targets
from testkit.edge.v2_bodies import push_to
from testkit.proofs import ProofKey

KEY = ProofKey(ed25519=True)


def proof(app: App, alias: str | None = "alice", **claims: Any) -> str:
    return KEY.proof(app.appkey, alias, now_s=NOW_MS // 1000, **claims)


async def phone(installation: EdgeInstallation, app: App, name: str) -> HttpDevice:
    installation.clock.move(10)
    device = HttpDevice(installation, app, ios_token(name))
    await device.hello()
    return device


async def reached(installation: EdgeInstallation, app: App) -> int:
    """Return how many devices the next push to the latest device of the alias reaches."""
    answer = await installation.push(push_to(None, 3, ios=app.appkey, alias="alice"), app.appkey)
    assert answer["result"] == 0, answer
    return len(targets((await installation.sent())[-1].audience.devices))


async def owner(installation: EdgeInstallation, app: App, *devices: HttpDevice) -> str:
    """Return the token of the device that the next push to the alias reaches."""
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    assert await reached(installation, app) == 1
    audience = (await installation.sent())[-1].audience.devices
    (target,) = targets(audience)
    tokens = [device.identity["token"] for device in devices]
    known = (await registry.GetDevices(GetDevicesRequest(appkey=app.appkey, tokens=tokens))).devices
    return next(one.token for one in known if (one.partition, one.number) == tuple(target)[:2])


async def test_the_attack_fails_where_proofs_are_accepted_and_works_where_identity_is_off(
    installation: EdgeInstallation,
) -> None:
    app = await installation.app(PLATFORM_IOS)
    victim, attacker = await phone(installation, app, "victim"), await phone(installation, app, "attacker")
    assert await victim.send("set_alias", alias="alice", proof="ignored without keys") == {"type": "ok"}
    installation.clock.move(10)
    assert await attacker.send("set_alias", alias="alice") == {"type": "ok"}
    assert await attacker.send("activity", event="open") == {"type": "ok"}
    assert await owner(installation, app, victim, attacker) == attacker.identity["token"]
    await installation.set_identity(app, IDENTITY_MODE_ACCEPT, KEY.public_pem)
    assert await victim.send("set_alias", alias="alice", proof=proof(app)) == {"type": "ok"}
    assert await attacker.send("activity", event="open") == {"type": "ok"}
    assert await owner(installation, app, victim, attacker) == victim.identity["token"]
    await installation.set_identity(app, IDENTITY_MODE_OFF, KEY.public_pem)
    assert await owner(installation, app, victim, attacker) == attacker.identity["token"]


async def test_where_proofs_are_required_the_answer_says_what_is_missing_or_wrong(
    installation: EdgeInstallation,
) -> None:
    app = await installation.app(PLATFORM_IOS)
    victim, attacker = await phone(installation, app, "victim"), await phone(installation, app, "attacker")
    await installation.set_identity(app, IDENTITY_MODE_REQUIRE, KEY.public_pem, tags=["user:*"])
    bound = proof(app, token=victim.identity["token"].upper(), stags=["user:alice"])
    assert await victim.send("set_alias", alias="alice", proof=bound) == {"type": "ok"}
    assert await victim.send("add_stags", stags=["user:alice"], proof=bound) == {"type": "ok"}
    for frame in ({"alias": "alice"}, {"alias": "alice", "proof": bound}, {"alias": "alice", "proof": "a.b.c"}):
        request = {"type": "set_alias", "id": 4, **attacker.identity, **frame}
        response = await installation.http.post("/device/v1", json=request)
        answer = response.json()
        expected = (401, 200) if "proof" in frame else (403, 403)
        assert (answer["code"], response.status_code, answer["id"]) == (*expected, 4)
        assert answer["desc"].startswith("proof")
    denied = await installation.http.post(
        "/device/v1", json={"type": "add_stags", **attacker.identity, "stags": ["user:alice"]}
    )
    assert denied.status_code == 403
    assert await owner(installation, app, victim, attacker) == victim.identity["token"]


async def test_the_string_tags_that_an_app_server_signs_count_as_proven(installation: EdgeInstallation) -> None:
    app = await installation.app(PLATFORM_IOS)
    device = await phone(installation, app, "phone")
    await installation.set_identity(app, IDENTITY_MODE_REQUIRE, KEY.public_pem, tags=["user:*"])
    token = device.identity["token"]
    body = {"appkey": app.appkey, "action": "stag", "params": {token: ["user:alice", "news"]}}
    answer = await installation.call("POST", "/v2/device", body, app.appkey)
    assert answer["result"] == 0, answer
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    known = (await registry.GetDevices(GetDevicesRequest(appkey=app.appkey, tokens=[token]))).devices[0]
    assert (list(known.stags), list(known.proven_stags)) == (["news", "user:alice"], ["user:alice"])
