"""Addresses script the answers of simulators over HTTP/1.1: codes of any vendor's form, statuses, faults, reasons."""

import json
import re
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from services.push_simulator.granted_tokens import GrantedTokens, TokenExpiredError
from services.push_simulator.http1 import SimulatorReply
from services.push_simulator.http1_service import (
    Http1SimulatedService,
    PushRefusedError,
    ReceivedRequest,
    json_reply,
)

NOW_MS = 1_800_000_000_000


class Vendor(Http1SimulatedService[bytes]):
    """A vendor whose requests are lists of addresses, with codes of up to two digits or more than three."""

    name = "vendor"
    codes = re.compile("-?[0-9]{1,2}|[0-9]{4,6}")
    reasons = frozenset(("invalid1",))

    def judge(self, headers: Mapping[str, str], body: bytes) -> ReceivedRequest[bytes]:
        return ReceivedRequest(body, json.loads(body))

    def refusal(self, refused: PushRefusedError) -> SimulatorReply:
        return json_reply(200, msgspec.json.encode(refused.code))

    def answer(self, valid: Sequence[str], refused: Mapping[str, str]) -> SimulatorReply:
        return json_reply(200, msgspec.json.encode([valid, refused]))

    def send(self, *addresses: str) -> SimulatorReply:
        return self.reply_to([(":method", "POST"), (":path", "/")], json.dumps(addresses).encode())


@pytest.fixture
async def vendor() -> Vendor:
    return Vendor()


async def test_codes_have_the_form_that_the_vendor_gives_them(vendor: Vendor) -> None:
    for code in ("-1", "0", "67", "10070", "200001"):
        assert json.loads(vendor.send("a", f"{code}:x").body) == code
    assert vendor.refused == {"-1": 1, "0": 1, "67": 1, "10070": 1, "200001": 1}
    assert not vendor.received
    for unscripted in ("1000000:x", "-503:x", "666:x", "word:x", "10070"):
        assert json.loads(vendor.send(unscripted).body) == [[unscripted], {}]


async def test_only_the_first_request_is_answered_as_once_scripts_it(vendor: Vendor) -> None:
    assert json.loads(vendor.send("once--1:x").body) == "-1"
    assert vendor.send("once-503:x").status == 503
    assert json.loads(vendor.send("once--1:x", "once-503:x").body) == [["once--1:x", "once-503:x"], {}]
    assert vendor.batches == [2]


async def test_statuses_faults_and_reasons(vendor: Vendor) -> None:
    vendor.retry_after = "9"
    assert vendor.send("429:x") == SimulatorReply(429, [("retry-after", "9")])
    assert vendor.send("500:x") == SimulatorReply(500, [])
    assert vendor.send("cut:x").fault == "cut"
    assert not vendor.received
    assert vendor.send("lost:x").fault == "lost"
    assert json.loads(vendor.send("a", "invalid1:x").body) == [["a"], {"invalid1:x": "invalid1"}]
    assert [received.token for received in vendor.received] == ["lost:x", "a"]
    await vendor.wait_for(2)


async def test_granted_tokens_expire_by_the_clock_and_by_order() -> None:
    tokens = GrantedTokens(life_s=60)
    first, second = tokens.grant("a", NOW_MS), tokens.grant("b", NOW_MS + 1)
    assert (tokens.client_of(first, NOW_MS), tokens.client_of("x", NOW_MS), tokens.granted) == ("a", None, 2)
    assert tokens.client_of_bearer(f"bearer {second}", NOW_MS + 60_000) == "b"
    assert tokens.client_of_bearer(second, NOW_MS) is None
    with pytest.raises(TokenExpiredError):
        tokens.client_of(first, NOW_MS + 60_000)
    tokens.expire()
    with pytest.raises(TokenExpiredError):
        tokens.client_of(second, NOW_MS)
