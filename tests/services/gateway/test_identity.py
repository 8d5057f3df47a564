"""Devices prove their aliases and identity tags to the gateway: the journey of a user, and of whoever poses as one."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from protos.registry.v1.apps_pb2 import IDENTITY_MODE_ACCEPT, IDENTITY_MODE_OFF, IDENTITY_MODE_REQUIRE
from protos.registry.v1.registry_pb2 import FindAliasesRequest
from services.domain.identity import PROOF_EVERY_MS, PROOFS_AT_ONCE
from testkit.gateway.role import ANDROID, NOON_MS, RunningGateway
from testkit.gateway.websocket import DeviceClient
from testkit.proofs import HOUR_S, ProofKey

KEY = ProofKey()
NOON_S = NOON_MS // 1000


class Phone:
    """A registered device."""

    def __init__(self, client: DeviceClient, token: str) -> None:
        self.client = client
        self.token = token
        self._number = 0

    async def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Send a request and return its answer without its id; an ok is {}."""
        self._number += 1
        answer = await self.client.request(type=kind, id=self._number, **fields)
        assert answer.pop("id") == self._number
        return {} if answer == {"type": "ok"} else answer


class Phones:
    """Connects devices to one gateway."""

    def __init__(self, gateway: RunningGateway) -> None:
        self._gateway = gateway
        self._clients: list[DeviceClient] = []

    async def new(self) -> Phone:
        client = await DeviceClient.connect(self._gateway.port)
        self._clients.append(client)
        welcome = await client.hello(ANDROID)
        return Phone(client, welcome["token"])

    def close(self) -> None:
        for client in self._clients:
            client.transport.disconnect(graceful=False)


@pytest.fixture
async def phones(gateway: RunningGateway) -> AsyncIterator[Phones]:
    phones = Phones(gateway)
    yield phones
    phones.close()


def proof(alias: str | None = "alice", key: ProofKey = KEY, **claims: Any) -> str:
    return key.proof(claims.pop("aud", ANDROID), alias, now_s=NOON_S, **claims)


async def found(gateway: RunningGateway, alias: str = "alice") -> list[str]:
    """Return the tokens of the alias's devices, the one first that a push to the latest device reaches."""
    answer = await gateway.registry.FindAliases(FindAliasesRequest(appkey=ANDROID, aliases=[alias]))
    return [device.token for device in answer.aliases[0].devices]


async def attack(gateway: RunningGateway, phones: Phones, **more: Any) -> tuple[Phone, dict[str, Any]]:
    """A new device of the same app takes the alias and reports that it was opened; return it and its answer."""
    gateway.clock.move(1)
    attacker = await phones.new()
    answer = await attacker.ask("set_alias", alias="alice", **more)
    attacker.client.send(type="activity", event="open")
    assert (await attacker.ask("get_device"))["type"] == "ok"  # its activity is applied
    return attacker, answer


async def test_where_identity_is_off_whoever_has_the_app_gets_the_next_push_of_another(
    gateway: RunningGateway, phones: Phones
) -> None:
    victim = await phones.new()
    assert await victim.ask("set_alias", alias="alice") == {}
    assert (await gateway.device(victim.token)).alias == "alice"
    attacker, answer = await attack(gateway, phones)
    assert answer == {}
    assert await found(gateway) == [attacker.token, victim.token]


async def test_where_proofs_are_accepted_an_attacker_does_not_come_before_the_user(
    gateway: RunningGateway, phones: Phones
) -> None:
    await gateway.set_identity(IDENTITY_MODE_ACCEPT, KEY.public_pem)
    victim = await phones.new()
    assert await victim.ask("set_alias", alias="alice", proof=proof()) == {}
    attackers = [await attack(gateway, phones) for _ in range(12)]
    assert {str(answer) for _, answer in attackers} == {"{}"}
    tokens = await found(gateway)
    assert tokens[0] == victim.token
    assert len(tokens) == 10
    assert (await gateway.device(victim.token)).alias_proven


async def test_where_proofs_are_required_an_attacker_gets_no_alias(gateway: RunningGateway, phones: Phones) -> None:
    victim, old = await phones.new(), await phones.new()
    assert await old.ask("set_alias", alias="alice") == {}
    await gateway.set_identity(IDENTITY_MODE_REQUIRE, KEY.public_pem)
    assert await victim.ask("set_alias", alias="alice", proof=proof(token=victim.token)) == {}
    missing = "proof is missing: this app requires a proof of its server for the alias"
    for _ in range(11):
        attacker, answer = await attack(gateway, phones)
        assert answer == {"type": "error", "code": 403, "desc": missing}
        assert (await gateway.device(attacker.token)).alias == ""
    stolen = proof(token=victim.token)
    for wrong, told in {
        "it is for another device: token is not that of this one": stolen,
        "it is for another alias: sub must be the alias": proof("mallory"),
        "it is for another app: aud must be or contain the appkey": proof(aud="1000000002"),
        "it has expired (exp); ask your server for a new one": proof(exp=NOON_S - HOUR_S),
        "wrong signature: no key of the app has signed it": proof(key=ProofKey()),
    }.items():
        attacker, answer = await attack(gateway, phones, proof=told)
        assert answer == {"type": "error", "code": 401, "desc": f"proof: {wrong}"}
    assert await found(gateway) == [victim.token]
    assert await old.ask("set_alias", alias="alice", proof=proof()) == {}
    assert {*await found(gateway)} == {old.token, victim.token}


async def test_keys_are_rotated_without_a_gap(gateway: RunningGateway, phones: Phones) -> None:
    new = ProofKey(ed25519=True)
    phone = await phones.new()
    for pems, good, bad in (
        ([KEY.public_pem], [KEY], [new]),
        ([KEY.public_pem, new.public_pem], [KEY, new], []),
        ([new.public_pem], [new], [KEY]),
    ):
        await gateway.set_identity(IDENTITY_MODE_REQUIRE, *pems)
        gateway.clock.move(PROOF_EVERY_MS // 1000 * PROOFS_AT_ONCE)
        for key in good:
            assert await phone.ask("set_alias", alias="alice", proof=proof(key=key)) == {}
        for key in bad:
            assert (await phone.ask("set_alias", alias="alice", proof=proof(key=key)))["code"] == 401
    await gateway.set_identity(IDENTITY_MODE_OFF)
    assert await phone.ask("set_alias", alias="alice", proof=proof()) == {}


async def test_identity_tags_are_proven_like_an_alias(gateway: RunningGateway, phones: Phones) -> None:
    await gateway.set_identity(IDENTITY_MODE_REQUIRE, KEY.public_pem, tags=["user:*", "30000..32767"])
    phone = await phones.new()
    assert await phone.ask("add_stags", stags=["news"]) == {}
    assert await phone.ask("add_tags", tags=[1]) == {}
    assert (await phone.ask("add_stags", stags=["news", "user:alice"]))["code"] == 403
    assert (await phone.ask("add_tags", tags=[30001]))["code"] == 403
    assert (await phone.ask("add_stags", stags=["user:alice"], proof=proof()))["code"] == 401
    named = proof(None, stags=["user:alice"], tags=[30001])
    assert await phone.ask("add_stags", stags=["user:alice", "sport"], proof=named) == {}
    assert await phone.ask("add_tags", tags=[30001, 2], proof=named) == {}
    device = await gateway.device(phone.token)
    assert (list(device.stags), list(device.proven_stags)) == (["news", "sport", "user:alice"], ["user:alice"])
    assert (list(device.tags), list(device.proven_tags)) == ([1, 2, 30001], [30001])
    assert await phone.ask("remove_stags", stags=["user:alice"]) == {}
    assert list((await gateway.device(phone.token)).proven_stags) == []


async def test_a_device_that_invents_proofs_is_told_to_stop(gateway: RunningGateway, phones: Phones) -> None:
    await gateway.set_identity(IDENTITY_MODE_ACCEPT, KEY.public_pem)
    phone, other = await phones.new(), await phones.new()
    forged = proof(key=ProofKey())
    codes = [(await phone.ask("set_alias", alias="alice", proof=forged))["code"] for _ in range(PROOFS_AT_ONCE + 5)]
    assert codes == [401] * PROOFS_AT_ONCE + [429] * 5
    assert await other.ask("set_alias", alias="alice", proof=proof()) == {}
    gateway.clock.move(PROOF_EVERY_MS // 1000)
    assert await phone.ask("set_alias", alias="alice", proof=proof()) == {}


async def test_a_proof_that_is_no_text_or_too_long_is_a_wrong_field(gateway: RunningGateway, phones: Phones) -> None:
    phone = await phones.new()
    for wrong in ("", "x" * 4097, 5, ["x"]):
        answer = await phone.ask("set_alias", alias="alice", proof=wrong)
        assert (answer["code"], answer["desc"].startswith("input error: proof: ")) == (400, True), answer
