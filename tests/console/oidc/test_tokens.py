"""Validation of tokens: signed by the provider's key, by an attacker's, or unsigned, with right and wrong claims."""

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, OKPKey, RSAKey

from console.oidc.provider import (
    ALGORITHMS,
    LEEWAY_S,
    LOG_OUT_EVENT,
    MAX_AGE_S,
    InvalidTokenError,
    TokenCheck,
    usable_keys,
)

NOW_S = 1_790_000_000
ISSUER = "https://login.example.org"
KEY = RSAKey.generate_key(2048, {"kid": "one"})
OTHER = RSAKey.generate_key(2048, {"kid": "one"})
CHECK = TokenCheck(ISSUER, "console", usable_keys([KEY.as_dict(private=False)]), NOW_S)
CLAIMS: Mapping[str, Any] = {
    "iss": ISSUER,
    "aud": "console",
    "sub": "alice",
    "exp": NOW_S + 300,
    "iat": NOW_S,
    "nonce": "n",
}
LOG_OUT: Mapping[str, Any] = {
    **{name: CLAIMS[name] for name in ("iss", "aud", "sub", "exp", "iat")},
    "jti": "1",
    "events": {LOG_OUT_EVENT: {}},
}


def token(claims: Mapping[str, Any], key: Any = KEY, **header: Any) -> str:
    sent = {"alg": "RS256", "kid": "one", **header}
    return jwt.encode(sent, {**claims}, key, algorithms=[sent["alg"]])


RIGHT = token(CLAIMS)


def unsigned(claims: Mapping[str, Any], algorithm: str, signature: str = "") -> str:
    parts = ({"alg": algorithm, "kid": "one"}, dict(claims))
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join((*texts, signature))


def test_a_token_as_it_should_be_is_accepted_also_with_clocks_that_differ_a_little() -> None:
    assert CHECK.id_token(token(CLAIMS), nonce="n")["sub"] == "alice"
    for change in (
        {"aud": ["console"]},
        {"aud": ["console", "another"], "azp": "console"},
        {"exp": NOW_S - LEEWAY_S + 1},
        {"iat": NOW_S + LEEWAY_S},
        {"iat": NOW_S - MAX_AGE_S},
        {"unknown": {"claim": [1]}},
    ):
        assert CHECK.id_token(token({**CLAIMS, **change}), nonce="n")["sub"] == "alice"
    assert CHECK.id_token(token(CLAIMS, x5t="unknown header"), nonce="n")["sub"] == "alice"
    assert CHECK.log_out_token(token(LOG_OUT, typ="logout+jwt"))["sub"] == "alice"


@pytest.mark.parametrize(
    "change",
    [
        {"iss": "https://evil.example"},
        {"iss": f"{ISSUER}/"},
        {"iss": None},
        {"aud": "another"},
        {"aud": ["console", "another"]},
        {"aud": ["console", "another"], "azp": "another"},
        {"aud": []},
        {"aud": {"console": 1}},
        {"azp": "another"},
        {"exp": NOW_S - LEEWAY_S},
        {"exp": "tomorrow"},
        {"exp": None},
        {"iat": NOW_S + LEEWAY_S + 1},
        {"iat": NOW_S - MAX_AGE_S - LEEWAY_S - 1},
        {"iat": None},
        {"nbf": NOW_S + LEEWAY_S + 1},
        {"sub": ""},
        {"sub": None},
        {"sub": 7},
        {"sub": "a b"},
        {"sub": "x" * 256},
        {"nonce": "another"},
        {"nonce": None},
        {"nonce": ["n"]},
    ],
    ids=str,
)
def test_a_wrong_claim_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidTokenError):
        CHECK.id_token(token({**CLAIMS, **change}), nonce="n")


@pytest.mark.parametrize(
    "forged",
    [
        lambda: token(CLAIMS, OTHER),
        lambda: token(CLAIMS, ECKey.generate_key("P-256"), alg="ES256"),
        lambda: unsigned(CLAIMS, "none"),
        lambda: unsigned(CLAIMS, "None", "AAAA"),
        lambda: token(CLAIMS, OctKey.import_key(str(KEY.as_dict(private=False)["n"])), alg="HS256"),
        lambda: token(CLAIMS, kid="two"),
        lambda: token(CLAIMS)[:-4] + "AAAA",
        lambda: unsigned({**CLAIMS}, "RS256", token(CLAIMS).rpartition(".")[2] + "AA"),
        lambda: token(CLAIMS, typ="at+jwt"),
        lambda: token(CLAIMS, typ="logout+jwt"),
        lambda: token({**CLAIMS, "padding": "x" * 70_000}),
        lambda: "",
        lambda: "a.b.c",
        lambda: "é.é.é",
    ],
)
def test_what_the_provider_did_not_sign_for_this_is_refused(forged: Callable[[], str]) -> None:
    with pytest.raises(InvalidTokenError):
        CHECK.id_token(forged(), nonce="n")


@pytest.mark.parametrize(
    "change",
    [
        {"events": {}},
        {"events": None},
        {"events": {LOG_OUT_EVENT: "yes"}},
        {"nonce": "n"},
        {"jti": None},
        {"sub": None},
        {"aud": "another"},
        {"iat": NOW_S - MAX_AGE_S - LEEWAY_S - 1},
    ],
    ids=str,
)
def test_no_other_token_is_taken_for_a_log_out_token(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidTokenError):
        CHECK.log_out_token(token({**LOG_OUT, **change}))
    with pytest.raises(InvalidTokenError):
        CHECK.log_out_token(token(CLAIMS))
    with pytest.raises(InvalidTokenError):
        CHECK.id_token(token(LOG_OUT), nonce="n")


def test_a_renewed_token_is_of_the_same_subject() -> None:
    without_nonce = {name: value for name, value in CLAIMS.items() if name != "nonce"}
    assert CHECK.renewed_id_token(token(without_nonce), subject="alice")["sub"] == "alice"
    with pytest.raises(InvalidTokenError):
        CHECK.renewed_id_token(token(without_nonce), subject="bob")


@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
def test_every_algorithm_of_the_list_works_and_unusable_keys_are_passed_over() -> None:
    made: list[Any] = [
        ECKey.generate_key("P-256", {"kid": "ec"}),
        ECKey.generate_key("P-384", {"kid": "ec384"}),
        ECKey.generate_key("P-521", {"kid": "ec521"}),
        OKPKey.generate_key("Ed25519", {"kid": "ed"}),
    ]
    foreign = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
        {"kty": "RSA", "kid": "broken"},
        {**OTHER.as_dict(private=False), "use": "enc", "kid": "enc"},
        {"kty": "AKP", "kid": "new"},
        "no key",
        None,
    ]
    keys = usable_keys([*foreign, *(key.as_dict(private=False) for key in (KEY, *made))])
    assert {key.kid for key in keys} == {"one", "ec", "ec384", "ec521", "ed"}
    check = TokenCheck(ISSUER, "console", keys, NOW_S)
    by_algorithm: dict[str, Any] = {
        "ES256": made[0],
        "ES384": made[1],
        "ES512": made[2],
        "EdDSA": made[3],
        "Ed25519": made[3],
    }
    for algorithm in ALGORITHMS:
        key = by_algorithm.get(algorithm, KEY)
        assert check.id_token(token(CLAIMS, key, alg=algorithm, kid=key.kid), nonce="n")["sub"] == "alice"
    assert list(usable_keys(foreign)) == list(KeySet([]))


@settings(max_examples=100, deadline=None)
@given(position=st.integers(0, 10_000), sign=st.sampled_from("ABCxyz019-_.=/ \x00é"))
def test_no_other_text_is_accepted_in_place_of_a_signed_one(position: int, sign: str) -> None:
    index = position % RIGHT.rindex(".")  # the last signs of a signature have spare bits
    changed = RIGHT[:index] + sign + RIGHT[index + 1 :]
    if changed == RIGHT:
        return
    with pytest.raises(InvalidTokenError):
        CHECK.id_token(changed, nonce="n")
