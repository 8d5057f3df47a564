"""The simulator of FCM refuses what Google's schema and its pages refuse, and names the field."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from protos.push.v1.push_pb2 import AndroidStyle, Message
from services.delivery.channels.fcm.request import FcmTarget, fcm_content, fcm_request
from services.domain.channel_credentials.fcm import GOOGLE_TOKEN_URI
from services.fcm_simulator.accounts import GRANT, SCOPE, new_account
from services.fcm_simulator.requests import FcmRefusedError, validate
from services.fcm_simulator.server import FcmSimulator
from services.process.clock import ManualClock
from services.push_simulator.connection import HttpRequest, ScriptedReply
from testkit.delivery.fcm_schema import problems

NOW_MS = 1_800_000_000_000
ACCOUNT, OTHER = new_account("weather-1"), new_account("news-1")
TOKEN = "cXz1y:APA91bH"
PATH = "/v1/projects/weather-1/messages:send"


def own_requests() -> list[bytes]:
    """Return requests as the service makes them."""
    messages = [
        Message(is_notif=True, content="from 14:00", android=AndroidStyle(title="Rain")),
        Message(is_notif=True, content="é" * 3000, extra='{"a":1}', android=AndroidStyle(title="x" * 3000)),
        Message(content="for the app"),
        Message(
            is_notif=True, content="c", android=AndroidStyle(click_action=3, click_param_json='"a.b.C"', sound=True)
        ),
    ]
    targets = (FcmTarget(TOKEN), FcmTarget("cXz1yAPA91bHcXz1yAPA91", is_fid=True))
    contents = [fcm_content(message, NOW_MS + 3_600_000) for message in messages]
    return [fcm_request(content, target, 7, NOW_MS + 3_600_000, NOW_MS) for content in contents for target in targets]


def wrong(change: dict[str, Any], **top: Any) -> bytes:
    return json.dumps({"message": {"token": TOKEN, **change}, **top}).encode()


WRONG: list[tuple[bytes, str]] = [
    (wrong({"notificaton": {}}), "message"),
    (wrong({}, validate_only=1), "message"),
    (wrong({"notification": {"titel": "x"}}), "message.notification"),
    (wrong({"data": {"a": 1}}), "message.data[...]"),
    (wrong({"android": {"ttl": 60}}), "message.android.ttl"),
    (wrong({"android": {"ttl": "2419201s"}}), "message.android.ttl"),
    (wrong({"android": {"priority": "URGENT"}}), "message.android.priority"),
    (
        wrong({"android": {"notification": {"notificationCount": "1"}}}),
        "message.android.notification.notificationCount",
    ),
    (wrong({"android": {}, "androidV2": {}}), "message.android"),
    (wrong({"data": {"from": "x"}}), "message.data"),
    (wrong({"data": {"google.x": "x"}}), "message.data"),
    (wrong({"topic": "news"}), "message"),
    (b'{"message":{}}', "message"),
]


def test_own_requests_are_accepted_by_googles_schema_and_by_the_simulator() -> None:
    for body in own_requests():
        assert problems(body) == []
        assert validate("weather-1", body).message.android


@pytest.mark.parametrize(("body", "field"), WRONG)
def test_what_googles_schema_refuses_is_refused_with_its_field(body: bytes, field: str) -> None:
    assert problems(body)
    with pytest.raises(FcmRefusedError) as refused:
        validate("weather-1", body)
    assert (refused.value.http, refused.value.status, refused.value.field) == (400, "INVALID_ARGUMENT", field)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (wrong({"notification": {"title": "x" * 4090, "body": "y" * 7}}), "message"),
        (wrong({"token": "not a token"}), "message.token"),
        (wrong({"token": ""}), "message.token"),
        (b"{", ""),
        (b"\xff", ""),
        (b"[]", ""),
        (b"[" * 10_000, ""),
    ],
    ids=["too big", "no token", "empty token", "no JSON", "no text", "no object", "deep"],
)
def test_what_only_googles_pages_refuse_is_refused(body: bytes, field: str) -> None:
    with pytest.raises(FcmRefusedError) as refused:
        validate("weather-1", body)
    assert (refused.value.http, refused.value.field) == (400, field)


class Client:
    """Sends requests to a simulator without a connection."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW_MS)
        self.simulator = FcmSimulator(self.clock)
        self.simulator.accounts.register(ACCOUNT)

    def reply(self, path: str, body: bytes, token: str = "") -> ScriptedReply:
        headers = [(":method", "POST"), (":path", path)]
        if token:
            headers.append(("authorization", f"Bearer {token}"))
        return self.simulator.reply_to(HttpRequest(headers, bytearray(body)))

    def grant(self, key: str = ACCOUNT.private_key, form: dict[str, str] | None = None, **changes: Any) -> Any:
        """Ask for an access token; return the answer."""
        header = {"alg": "RS256", "typ": "JWT", "kid": changes.pop("kid", ACCOUNT.private_key_id)}
        now_s = self.clock.now_ms() // 1000
        claims = {
            "iss": ACCOUNT.client_email,
            "scope": SCOPE,
            "aud": GOOGLE_TOKEN_URI,
            "iat": now_s,
            "exp": now_s + 3600,
        }
        assertion = jwt.encode(header, {**claims, **changes}, RSAKey.import_key(key), algorithms=["RS256"])
        sent = {"grant_type": GRANT, "assertion": assertion} if form is None else form
        return json.loads(self.reply("/token", urlencode(sent).encode()).body)

    def refusal(self, path: str, body: bytes, token: str = "") -> tuple[str, str]:
        """Return the status of a refused request, and Google's canonical word."""
        reply = self.reply(path, body, token)
        return reply.headers[0][1], json.loads(reply.body)["error"]["status"]


NOW_S = NOW_MS // 1000


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"key": OTHER.private_key}, "invalid_grant", "Signature"),
        ({"kid": "deleted"}, "invalid_grant", "Signature"),
        ({"iss": "nobody@example.org"}, "invalid_grant", "account not found"),
        ({"aud": "https://example.org"}, "invalid_grant", "audience"),
        ({"exp": NOW_S + 3601}, "invalid_grant", "short-lived"),
        ({"iat": NOW_S - 4000, "exp": NOW_S - 400}, "invalid_grant", "short-lived"),
        ({"iat": NOW_S + 4000, "exp": NOW_S + 7000}, "invalid_grant", "short-lived"),
        ({"scope": "https://www.googleapis.com/auth/drive"}, "invalid_scope", "scope"),
        ({"form": {"grant_type": "password"}}, "unsupported_grant_type", "grant_type"),
        ({"form": {"grant_type": GRANT, "assertion": "x"}}, "invalid_grant", "JWT"),
        ({"form": {"grant_type": GRANT, "assertion": "e30.e30.x"}}, "invalid_grant", "JWT"),
    ],
)
async def test_wrong_assertions_get_no_token(changes: dict[str, Any], error: str, words: str) -> None:
    answer = Client().grant(**changes)
    assert answer["error"] == error
    assert words in answer["error_description"]


async def test_a_token_is_good_for_its_project_and_its_time() -> None:
    client, body = Client(), own_requests()[0]
    token = client.grant()["access_token"]
    assert client.reply(PATH, body, token).headers[0] == (":status", "200")
    client.simulator.accounts.register(OTHER)
    assert client.refusal("/v1/projects/news-1/messages:send", body, token) == ("403", "PERMISSION_DENIED")
    assert client.refusal("/v1/projects/none-1/messages:send", body, token) == ("404", "NOT_FOUND")
    assert client.refusal("/v2/projects/weather-1/messages:send", body, token) == ("404", "NOT_FOUND")
    assert client.refusal(PATH, body) == ("401", "UNAUTHENTICATED")
    assert client.refusal(PATH, body, f"{token}x") == ("401", "UNAUTHENTICATED")
    client.clock.move(3599)
    assert client.refusal(PATH, body, token) == ("401", "UNAUTHENTICATED")
    assert len(client.simulator.received) == 1


async def test_a_dry_request_is_validated_and_shown_on_no_phone() -> None:
    client = Client()
    token = client.grant()["access_token"]
    body = fcm_request(
        fcm_content(Message(is_notif=True, content="x"), NOW_MS), FcmTarget(TOKEN), 7, NOW_MS, NOW_MS, dry=True
    )
    assert client.reply(PATH, body, token).body == b'{"name":"projects/weather-1/messages/fake_message_id"}'
    assert client.simulator.shown(TOKEN) == {}
    assert client.refusal(PATH, body.replace(TOKEN.encode(), b"404-UNREGISTERED:x"), token) == ("404", "NOT_FOUND")
