"""The simulator of HarmonyOS refuses what Huawei's documents say it refuses, and tells what phones show."""

import json
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from services.domain.channel_credentials.harmony import HarmonyAccount
from services.domain.channel_credentials.hms import HUAWEI_TOKEN_URL
from services.hms_simulator.harmony import HarmonySimulator, new_key
from services.hms_simulator.harmony_requests import MAX_TEST_TOKENS, validate
from services.hms_simulator.requests import MAX_TOKENS
from services.process.clock import ManualClock
from services.push_simulator.http1_service import PushRefusedError

SHOWN: dict[str, Any] = {
    "category": "MARKETING", "title": "Rain", "body": "from 14:00", "clickAction": {"actionType": 0}, "notifyId": 5,
}  # fmt: skip
NOW_S = 1_800_000_000


def message(notification: dict[str, Any] | None = SHOWN, tokens: Any = ("a",), **options: Any) -> dict[str, Any]:
    payload = {"extraData": "x"} if notification is None else {"notification": notification}
    return {"payload": payload, "pushOptions": options, "target": {"token": list(tokens)}}


def code_of(body: Any, push_type: str = "0") -> str:
    try:
        validate(body if isinstance(body, bytes) else json.dumps(body).encode(), push_type)
    except PushRefusedError as refused:
        return refused.code
    return ""


@pytest.mark.parametrize(
    ("body", "push_type"),
    [
        (message(), "0"),
        (message(ttl=1_296_000, biTag="b" * 64, collapseKey=100, receiptId="r"), "0"),
        (message({**SHOWN, "clickAction": {"actionType": 1, "uri": "https://example.org"}}), "0"),
        (message({**SHOWN, "clickAction": {"actionType": 0, "data": {"a": 1}}, "badge": {"addNum": 1}}), "0"),
        (message(tokens=[str(number) for number in range(MAX_TOKENS)]), "0"),
        (message(None), "6"),
    ],
)
def test_right_requests(body: dict[str, Any], push_type: str) -> None:
    assert code_of(body, push_type) == ""


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "80100001"),
        (b"[]", "80100001"),
        (message() | {"unknown": 1}, "80100001"),
        (message(unknown=1), "80100001"),
        (message({**SHOWN, "sound": "x"}), "80100001"),
        (message({**SHOWN, "notifyId": "5"}), "80100001"),
        (message(tokens=[1]), "80100001"),
        (message(tokens=[]), "80300010"),
        (message(tokens=["a"] * (MAX_TOKENS + 1)), "80300010"),
        (message(tokens=["a"] * (MAX_TEST_TOKENS + 1), testMessage=True), "80300030"),
        (message({**SHOWN, "body": "x" * 4000}), "80300008"),
        (message(ttl=0), "80100004"),
        (message(ttl=1_296_001), "80100004"),
        (message(biTag="b" * 65), "80100003"),
        (message(collapseKey=101), "80100003"),
        (message(None), "80100003"),
        (message({**SHOWN, "title": ""}), "80100003"),
        (message({**SHOWN, "body": ""}), "80100003"),
        (message({"category": "IM", "title": "a", "body": "b"}), "80100003"),
        (message({**SHOWN, "category": "NEWS"}), "80100003"),
        (message({**SHOWN, "clickAction": {"actionType": 1}}), "80100003"),
        (message({**SHOWN, "clickAction": {"actionType": 0, "uri": "x"}}), "80100003"),
        (message({**SHOWN, "notifyId": 2**31}), "80100003"),
        (message({**SHOWN, "appMessageId": ""}), "80100003"),
        (message({**SHOWN, "image": "http://example.org"}), "80100003"),
        (message({**SHOWN, "badge": {"addNum": 0}}), "80100003"),
        (message({**SHOWN, "badge": {"setNum": 100}}), "80100003"),
    ],
)
def test_what_is_refused(body: Any, code: str) -> None:
    assert code_of(body) == code


def test_the_header_must_be_that_of_the_payload() -> None:
    assert [code_of(message(), kind) for kind in ("", "1", "6")] == ["80100001", "80100001", "80100003"]


class Caller:
    """Asks the simulator as a sender does, without connections."""

    def __init__(self, account: HarmonyAccount) -> None:
        self.account = account
        self.simulator = HarmonySimulator(ManualClock(NOW_S * 1000))
        self.simulator.register(account)
        self.key = RSAKey.import_key(account.private_key)

    def token(self, header: dict[str, Any] | None = None, **claims: Any) -> str:
        heads = {"kid": self.account.key_id, "typ": "JWT", "alg": "PS256", **(header or {})}
        named = {"iss": self.account.sub_account, "aud": HUAWEI_TOKEN_URL, "iat": NOW_S, "exp": NOW_S + 3600, **claims}
        return jwt.encode(heads, named, self.key, algorithms=[heads["alg"]])

    def send(self, body: Any, token: str, path: str = "/v3/3884/messages:send") -> dict[str, Any]:
        fields = [(":method", "POST"), (":path", path), ("authorization", f"Bearer {token}"), ("push-type", "0")]
        reply = self.simulator.reply_to(fields, json.dumps(body).encode())
        return {"status": reply.status, **json.loads(reply.body)}


@pytest.fixture(scope="module")
def account() -> HarmonyAccount:
    return HarmonyAccount("3884", "key-1", "1045", new_key())


@pytest.fixture
async def caller(account: HarmonyAccount) -> Caller:
    return Caller(account)


async def test_requests_are_signed_by_the_account_of_their_project(caller: Caller) -> None:
    assert caller.send(message(), caller.token())["code"] == "80000000"
    wrong = [
        caller.token({"kid": "key-2"}), caller.token({"alg": "RS256"}), caller.token({"typ": "x"}),
        caller.token(iss="1"), caller.token(aud="https://example.org"), caller.token(iat="now"), "x", "",
    ]  # fmt: skip
    assert [caller.send(message(), token)["code"] for token in wrong] == ["80200001"] * len(wrong)
    assert caller.send(message(), caller.token(), "/v3/1/messages:send")["code"] == "80200001"
    assert caller.send(message(), caller.token(exp=NOW_S))["code"] == "80200005"
    assert caller.send(message(), caller.token(iat=NOW_S + 301))["code"] == "80200005"
    assert caller.send(message(), caller.token(exp=NOW_S + 86_401))["code"] == "80300036"
    caller.key = RSAKey.import_key(new_key())
    assert caller.send(message(), caller.token())["code"] == "80200001"


async def test_addresses_are_refused_alone_and_for_a_reason(caller: Caller) -> None:
    answer = caller.send(message(tokens=["a", "noRight:x", "noRight:y", "not a token"]), caller.token())
    told = {"noRight": ["noRight:x", "noRight:y"], "tokenFormatError": ["not a token"]}
    assert (answer["status"], answer["code"]) == (200, "80100000")
    assert json.loads(answer["msg"]) == {"success": 1, "failure": 3, "illegalTokens": told}
    answer = caller.send(message(tokens=["noRight:x"]), caller.token())
    assert (answer["code"], json.loads(answer["msg"])["illegalTokens"]) == ("80300007", {"noRight": ["noRight:x"]})
    assert [received.token for received in caller.simulator.received] == ["a"]
    assert list(caller.simulator.shown("a")) == [5]
    answers = [caller.send(message(tokens=["once-appinfoError:x"]), caller.token())["code"] for _ in range(2)]
    assert answers == ["80300007", "80000000"]
