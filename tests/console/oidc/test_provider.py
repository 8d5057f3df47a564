"""Providers with late, too large or wrong answers, and invalid settings of a provider."""

import asyncio
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc.jwk import ECKey

import console.oidc.provider
from console.oidc.provider import KEPT_MS, MAX_ANSWER, PAUSE_MS, Provider, ProviderAwayError, ProviderRefusalError
from console.oidc.settings import GroupMapping, groups_in
from console.settings import ConsoleSettings
from services.domain.settings import SettingsError, load
from services.process.clock import ManualClock
from testkit.repository import ROOT

ISSUER = "https://login.example.org"
METADATA = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/auth",
    "token_endpoint": f"{ISSUER}/token",
    "jwks_uri": f"{ISSUER}/jwks",
}
KEY = ECKey.generate_key("P-256", {"kid": "one"})
Handler = Callable[[httpx.Request], httpx.Response]


def provider_with(handler: Any, clock: ManualClock | None = None, **settings: Any) -> Provider:
    given = ConsoleSettings(oidc_issuer=ISSUER, oidc_client_id="console", **settings)
    return Provider(given, clock or ManualClock(PAUSE_MS), httpx.MockTransport(handler))


def answering(token: httpx.Response, **metadata: Any) -> Handler:
    def answer(request: httpx.Request) -> httpx.Response:
        return token if request.url.path == "/token" else httpx.Response(200, json={**METADATA, **metadata})

    return answer


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": f"{ISSUER}/"},
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://login.example.org/token"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"jwks_uri": ""},
        {"end_session_endpoint": "http://login.example.org/out"},
        {"end_session_endpoint": "https://login.example.org/out\r\nX: y"},
        {"token_endpoint": 7},
        {"token_endpoint": None},
    ],
    ids=str,
)
async def test_metadata_that_cannot_be_right_are_not_used(metadata: dict[str, Any]) -> None:
    provider = provider_with(answering(httpx.Response(200), **metadata))
    with pytest.raises(ProviderAwayError):
        await provider.metadata()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(400, json={"error": "invalid_grant"}), ProviderRefusalError),
        (httpx.Response(400, json={"error": "invalid_client"}), ProviderAwayError),
        (httpx.Response(401, json={"error": "invalid_client"}), ProviderAwayError),
        (httpx.Response(500, json={"error": "invalid_grant"}), ProviderAwayError),
        (httpx.Response(429), ProviderAwayError),
        (httpx.Response(302, headers={"Location": "https://evil.example"}), ProviderAwayError),
        (httpx.Response(200, text="<html>"), ProviderAwayError),
        (httpx.Response(200, content=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"}), ProviderAwayError),
        (httpx.Response(200, json=[]), ProviderAwayError),
        (httpx.Response(200, json={"refresh_token": 7}), ProviderAwayError),
        (httpx.Response(200, content=b"x" * (MAX_ANSWER + 1)), ProviderAwayError),
    ],
)
async def test_only_a_refusal_ends_a_session(answer: httpx.Response, error: type[Exception]) -> None:
    with pytest.raises(error):
        await provider_with(answering(answer)).renew("token")


async def test_a_provider_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console.oidc.provider, "DEADLINE_S", 0.01)
    asked = 0

    async def never(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()
        raise AssertionError

    clock = ManualClock(PAUSE_MS)
    provider = provider_with(never, clock)
    for _ in range(3):
        with pytest.raises(ProviderAwayError):
            await provider.metadata()
    assert asked == 1
    clock.move(PAUSE_MS / 1000)
    with pytest.raises(ProviderAwayError):
        await provider.metadata()
    assert asked == 2


async def test_metadata_and_keys_are_kept_while_the_provider_is_away() -> None:
    answers = [httpx.Response(200, json=METADATA), httpx.Response(200, json={"keys": [KEY.as_dict(private=False)]})]
    asked: list[str] = []

    def once(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return answers.pop(0) if answers else httpx.Response(503)

    clock = ManualClock(PAUSE_MS)
    provider = provider_with(once, clock)
    assert [key.kid for key in await provider.keys()] == ["one"]
    for _ in range(5):
        await provider.keys(is_one_unknown=True)  # forged tokens cost no request each
    assert asked == ["/.well-known/openid-configuration", "/jwks"]
    clock.move(KEPT_MS / 1000)
    assert [key.kid for key in await provider.keys()] == ["one"]
    assert len(asked) == 4


async def test_the_secret_goes_the_way_that_the_provider_takes(tmp_path: Path) -> None:
    seen: list[httpx.Request] = []
    (tmp_path / "secret").write_text("a&b: %ä\n")

    def note(methods: list[str]) -> Handler:
        def answer(request: httpx.Request) -> httpx.Response:
            seen.append(request)
            metadata = {**METADATA, "token_endpoint_auth_methods_supported": methods}
            return httpx.Response(200, json={"id_token": "x"} if request.url.path == "/token" else metadata)

        return answer

    secret: Any = {"oidc_client_secret_file": str(tmp_path / "secret")}
    await provider_with(note(["client_secret_basic", "client_secret_post"]), **secret).exchange("c", "v", "r")
    assert seen[-1].headers["authorization"] == "Basic Y29uc29sZTphJTI2YiUzQSUyMCUyNSVDMyVBNA=="
    assert b"client_secret" not in seen[-1].content
    await provider_with(note(["client_secret_post"]), **secret).exchange("c", "v", "r")
    assert b"client_id=console&client_secret=a%26b%3A+%25%C3%A4" in seen[-1].content
    await provider_with(note(["client_secret_basic"])).exchange("c", "v", "r")
    assert "authorization" not in seen[-1].headers
    assert b"code_verifier=v" in seen[-1].content
    assert seen[-1].content.endswith(b"&client_id=console")


def test_groups_give_the_highest_of_their_roles() -> None:
    mapping = GroupMapping.parse(
        json.dumps(
            {"a": {"teams": {"News": "approver"}}, "b": {"teams": {"News": "viewer", "Sport": "sender"}}, "c": {}}
            | {"d": {"administrator": True}}
        ).encode()
    )
    both = mapping.roles_of(["a", "b", "unknown"])
    assert [(each.team, each.role) for each in both.teams] == [("News", 3), ("Sport", 2)]
    assert mapping.roles_of(["d"]).administrator
    for nothing in (["c"], [], ["A"]):
        assert not mapping.roles_of(nothing).ByteSize()
    assert groups_in(["a", 7, None, "b"]) == ["a", "b"]
    assert groups_in("a") == ["a"]
    assert groups_in({"a": 1}) == groups_in(None) == []


def test_the_file_in_the_docs_is_one() -> None:
    page = (ROOT / "docs/operators/openid-connect.md").read_text()
    mapping = GroupMapping.parse(page.partition("```json\n")[2].partition("```")[0].encode())
    roles = mapping.roles_of(["news-desk", "news-heads"])
    assert [(each.team, each.role) for each in roles.teams] == [("News", 3), ("Sport", 1)]
    settings = {f"CARILLON_{name.upper()}" for name in ConsoleSettings.__struct_fields__ if name.startswith("oidc_")}
    assert settings == set(re.findall(r"^\| `(CARILLON_OIDC_\w+)`", page, re.MULTILINE))


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"a": {}}', '{"a": {"team": {}}}', '{"a": {"teams": {"News": "boss"}}}', '{"a": 1}']
)
def test_a_wrong_file_of_roles_stops_the_start(tmp_path: Path, content: str) -> None:
    (tmp_path / "roles.json").write_text(content)
    with pytest.raises(SettingsError, match="CARILLON_OIDC_ROLES_FILE is"):
        loaded(roles_file=str(tmp_path / "roles.json"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ISSUER", "http://login.example.org"),
        ("ISSUER", "login.example.org"),
        ("ISSUER", "https://login.example.org?x=1"),
        ("CLIENT_ID", ""),
        ("CLIENT_SECRET_FILE", "/nonexistent"),
        ("CLIENT_SECRET_FILE", "/dev/null"),
        ("ROLES_FILE", "/nonexistent"),
        ("AUTHORITY", "/nonexistent"),
        ("AUTHORITY", __file__),
        ("SCOPES", "profile"),
        ("CHECK_S", "286"),
        ("PASSWORDS", "nobody"),
    ],
)
def test_a_wrong_setting_stops_the_start(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"CARILLON_OIDC_{name} is") as raised:
        loaded(**{name.lower(): value})
    assert "\n" not in str(raised.value)


def test_settings_of_a_provider_need_one() -> None:
    with pytest.raises(SettingsError, match="CARILLON_OIDC_NAME is set, but CARILLON_OIDC_ISSUER is not"):
        loaded(issuer="", client_id="", name="Example")
    assert loaded().oidc_display_name == "login.example.org"
    assert loaded(issuer="http://127.0.0.1:9").has_provider
    assert not ConsoleSettings().has_provider


def loaded(**given: str) -> ConsoleSettings:
    settings = {"issuer": ISSUER, "client_id": "console", **given}
    return load(ConsoleSettings, {f"CARILLON_OIDC_{name.upper()}": value for name, value in settings.items()})
