"""Access tokens of a service account: one request in flight, renewal before the end, refusals; checks of key files."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from joserfc import jwt
from joserfc.jwk import RSAKey
from structlog.testing import capture_logs

from services.delivery.channels import CredentialsError
from services.delivery.channels.access_tokens import AccessTokens, TokenResponse
from services.delivery.channels.fcm.tokens import GRANT, SCOPE, account_tokens
from services.domain.channel_credentials.fcm import GOOGLE_TOKEN_URI, ServiceAccount, parse_service_account
from services.errors import InputError, UnavailableError
from services.process.clock import ManualClock
from testkit.apns.keys import canaries, pem
from testkit.waiting import run_ready_tasks

NOW_MS = 1_800_000_000_000
KEY = rsa.generate_private_key(65537, 2048)
FILE = {
    "type": "service_account",
    "project_id": "project-1",
    "private_key_id": "key-1",
    "private_key": pem(KEY),
    "client_email": "push@project-1.iam.gserviceaccount.com",
    "client_id": "1",
    "token_uri": GOOGLE_TOKEN_URI,
}
ACCOUNT = parse_service_account(json.dumps(FILE), "file")


class TokenServer:
    """Answers with a token of its own number each time, or as `answer` says; `answers` holds answers back."""

    def __init__(self) -> None:
        self.forms: list[Mapping[str, str]] = []
        self.answer: TokenResponse | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def __call__(self, url: str, form: Mapping[str, str]) -> TokenResponse:
        assert url == GOOGLE_TOKEN_URI
        self.forms.append(form)
        number = len(self.forms)
        await self.answers.wait()
        token = {"access_token": f"token-{number}", "expires_in": 3600, "token_type": "Bearer"}
        return self.answer or TokenResponse(200, json.dumps(token).encode())


def refusal(status: int, **words: str) -> TokenResponse:
    return TokenResponse(status, json.dumps(words).encode())


@pytest.fixture
async def server() -> TokenServer:
    return TokenServer()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
async def tokens(server: TokenServer, clock: ManualClock) -> AccessTokens:
    return account_tokens(ACCOUNT, server, clock)


async def test_a_token_is_asked_for_with_a_signed_assertion(tokens: AccessTokens, server: TokenServer) -> None:
    assert await tokens.text() == "token-1"
    (form,) = server.forms
    assert form["grant_type"] == GRANT
    public = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    decoded = jwt.decode(form["assertion"], RSAKey.import_key(public), algorithms=["RS256"])
    assert decoded.header == {"typ": "JWT", "alg": "RS256", "kid": "key-1"}
    assert decoded.claims == {
        "iss": FILE["client_email"],
        "scope": SCOPE,
        "aud": GOOGLE_TOKEN_URI,
        "iat": NOW_MS // 1000,
        "exp": NOW_MS // 1000 + 3600,
    }


async def test_all_that_wait_share_one_request(tokens: AccessTokens, server: TokenServer) -> None:
    server.answers.clear()
    waiting = [asyncio.create_task(tokens.text()) for _ in range(100)]
    await run_ready_tasks()
    waiting[0].cancel()
    server.answers.set()
    found = await asyncio.gather(*waiting[1:])
    assert (set(found), len(server.forms)) == ({"token-1"}, 1)


async def test_a_token_is_renewed_before_its_end_while_it_is_used(
    tokens: AccessTokens, server: TokenServer, clock: ManualClock
) -> None:
    await tokens.text()
    clock.move(2879)
    assert (await tokens.text(), len(server.forms)) == ("token-1", 1)
    clock.move(1)
    server.answers.clear()
    assert {await tokens.text() for _ in range(10)} == {"token-1"}
    await run_ready_tasks()
    server.answers.set()
    await run_ready_tasks()
    assert (await tokens.text(), len(server.forms)) == ("token-2", 2)


async def test_the_token_server_may_be_away_while_a_token_lasts(
    tokens: AccessTokens, server: TokenServer, clock: ManualClock
) -> None:
    await tokens.text()
    server.answer = TokenResponse(0, b"")
    clock.move(3599)
    assert await tokens.text() == "token-1"
    await run_ready_tasks()
    clock.move(1)
    with pytest.raises(UnavailableError, match="no answer"):
        await tokens.text()
    server.answer = None
    clock.move(60)
    assert await tokens.text() == f"token-{len(server.forms)}"


async def test_a_refused_token_is_replaced_once(tokens: AccessTokens, server: TokenServer) -> None:
    first = await tokens.text()
    for _ in range(3):
        tokens.refuse(first)
        assert await tokens.text() == "token-2"
    assert len(server.forms) == 2


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        (
            refusal(400, error="invalid_grant", error_description="Invalid JWT Signature."),
            CredentialsError,
            "Invalid JWT",
        ),
        (refusal(401, error="invalid_client"), CredentialsError, "invalid_client"),
        (TokenResponse(400, b'{"error":1101,"error_description":"app"}'), CredentialsError, "1101 app"),
        (TokenResponse(403, b"\xff"), CredentialsError, "HTTP 403"),
        (TokenResponse(503, b""), UnavailableError, "HTTP 503"),
        (TokenResponse(200, b"{}"), UnavailableError, "HTTP 200"),
        (TokenResponse(200, b'{"access_token":"x\\r\\ny","expires_in":9}'), UnavailableError, "HTTP 200"),
        (TokenResponse(200, b'{"access_token":"x","expires_in":0}'), UnavailableError, "HTTP 200"),
    ],
)
async def test_a_refusal_backs_off_and_tells_no_secret(
    tokens: AccessTokens, server: TokenServer, clock: ManualClock, answer: TokenResponse, error: Any, told: str
) -> None:
    server.answer = answer
    with capture_logs() as logs:
        for _ in range(5):
            with pytest.raises(error, match=told):
                await tokens.text()
        assert len(server.forms) == 1
        for seconds in (1, 2, 4, 8):
            clock.move(seconds - 0.001)
            with pytest.raises(error):
                await tokens.text()
            clock.move(0.001)
            with pytest.raises(error):
                await tokens.text()
    assert len(server.forms) == 5
    secrets = [word.decode() for word in canaries(ACCOUNT.private_key)] + [form["assertion"] for form in server.forms]
    assert not [secret for secret in secrets if secret in str(logs)]
    server.answer = None
    clock.move(16)
    assert await tokens.text() == "token-6"


def test_the_key_file_is_read() -> None:
    assert ServiceAccount("project-1", FILE["client_email"], "key-1", FILE["private_key"]) == ACCOUNT
    assert "PRIVATE" not in repr(ACCOUNT)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"type": "authorized_user"}, "service_account"),
        ({"token_uri": "https://attacker.example/token"}, "token_uri"),
        ({"private_key": "x"}, "no RSA key"),
        ({"private_key": pem(ec.generate_private_key(ec.SECP256R1()))}, "no RSA key"),
        ({"private_key": 1}, "lacks a field"),
        ({"project_id": ""}, "lacks a field"),
    ],
)
def test_wrong_key_files(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told) as refused:
        parse_service_account(json.dumps({**FILE, **changed}), "file")
    assert not [word for word in canaries(FILE["private_key"]) if word.decode() in str(refused.value)]


@pytest.mark.parametrize("content", ["", "\ufffd", "[]", "{}", "[" * 10_000])
def test_files_that_are_no_key_file(content: str) -> None:
    with pytest.raises(InputError):
        parse_service_account(content, "file")
