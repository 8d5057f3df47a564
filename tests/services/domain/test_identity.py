"""Proofs of aliases and identity tags: what verifies, what is refused and why, and the settings they follow from."""

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey

from protos.registry.v1.apps_pb2 import (
    IDENTITY_MODE_ACCEPT,
    IDENTITY_MODE_OFF,
    IDENTITY_MODE_REQUIRE,
    App,
    Identity,
    IdentityMode,
)
from services.domain.device_protocol.commands import command
from services.domain.device_protocol.frames import AddStagsRequest, AddTagsRequest, Change, SetAliasRequest
from services.domain.identity import (
    LEEWAY_S,
    MAX_LIFETIME_S,
    PROOF_EVERY_MS,
    PROOFS_AT_ONCE,
    IdentityChecks,
    ProofError,
    checked_keys,
    checked_tags,
    key_ids,
    public_key,
    verified,
)
from services.errors import CarillonError, ForbiddenError, InputError, SignError, TooManyRequestsError
from testkit.examples import examples
from testkit.proofs import HOUR_S, ProofKey

APPKEY = "1000000001"
TOKEN = "the-device"
NOW_S = 1_790_000_000
P256, ED25519, OTHER = ProofKey(), ProofKey(ed25519=True), ProofKey()
KEYS = {"ES256": P256, "Ed25519": ED25519}


def app(mode: "IdentityMode.ValueType" = IDENTITY_MODE_REQUIRE, *keys: ProofKey, tags: tuple[str, ...] = ()) -> App:
    pems = [key.public_pem for key in keys or (P256,)]
    return App(appkey=APPKEY, identity=Identity(mode=mode, keys=pems, tags=tags))


def proof(alias: str | None = "alice", key: ProofKey = P256, **claims: Any) -> str:
    return key.proof(claims.pop("aud", APPKEY), alias, now_s=NOW_S, **claims)


def proven(request: Change, asked: App, token: str = TOKEN, checks: IdentityChecks | None = None) -> Any:
    """Return what the command of a request says is proven."""
    made = command(request, APPKEY, token)
    assert made is not None
    (checks or IdentityChecks(lambda: NOW_S * 1000)).check(asked, token, request, made)
    kind = made.WhichOneof("command")
    assert kind is not None
    noted = getattr(made, kind).proven
    return noted if isinstance(noted, bool) else list(noted)


def refusal(given_proof: str, asked: App | None = None, alias: str = "alice", token: str = TOKEN) -> str:
    with pytest.raises(SignError) as caught:
        proven(SetAliasRequest(alias=alias, proof=given_proof), asked or app(), token)
    return str(caught.value)


def encoded(value: Any) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_proof_of_the_alias_counts(key: ProofKey) -> None:
    asked = app(IDENTITY_MODE_REQUIRE, key)
    for claims in (
        {},
        {"aud": ["other", APPKEY]},
        {"token": TOKEN},
        {"iat": None},
        {"nbf": NOW_S},
        {"exp": NOW_S + 0.5},
        {"exp": NOW_S - LEEWAY_S + 1},
        {"exp": NOW_S + MAX_LIFETIME_S, "iat": NOW_S + LEEWAY_S},
        {"unknown": {"a": [1]}},
    ):
        assert proven(SetAliasRequest(alias="alice", proof=proof(key=key, **claims)), asked) is True, claims
    with_kid = key.signed({"sub": "alice", "aud": APPKEY, "exp": NOW_S + HOUR_S}, kid="anything", typ="JWT")
    assert proven(SetAliasRequest(alias="alice", proof=with_kid), asked) is True


def test_a_wrong_proof_is_refused_with_the_reason() -> None:
    refused = {
        "proof: wrong signature: no key of the app has signed it": proof(key=OTHER),
        "proof: it is for another app: aud must be or contain the appkey": proof(aud="1000000002"),
        "proof: it is for another alias: sub must be the alias": proof("mallory"),
        "proof: it has expired (exp); ask your server for a new one": proof(exp=NOW_S - LEEWAY_S),
        "proof: it expires too late: exp must be within 24 hours": proof(exp=NOW_S + MAX_LIFETIME_S + LEEWAY_S + 1),
        "proof: it does not hold yet (nbf, iat): compare the clocks": proof(nbf=NOW_S + LEEWAY_S + 1),
        "proof: it is for another device: token is not that of this one": proof(token="another"),
        "proof: its alg must be ES256, which is what the app's keys are for": proof(key=ED25519),
        "proof: its claims are wrong: object missing required field exp": proof(exp=None),
    }
    assert {refusal(given_proof): given_proof for given_proof in refused.values()} == refused
    assert "iat" in refusal(proof(iat=NOW_S + 3600))
    assert refusal(proof(None)) == "proof: it is for another alias: sub must be the alias"
    assert refusal(proof("Alice")) == "proof: it is for another alias: sub must be the alias"
    for claims in ({"exp": "soon"}, {"exp": True}, {"sub": 5}, {"aud": 5}, {"aud": None}, {"tags": [99999]}):
        assert refusal(proof(**claims)).startswith("proof: ")
    not_finite = f'{{"sub":"alice","aud":"{APPKEY}","exp":1e999}}'.encode()
    assert refusal(_signed_raw(not_finite)).startswith("proof: ")


def _signed_raw(payload: bytes) -> str:
    key = ECKey.import_key(P256.private_pem)
    return jws.serialize_compact({"alg": "ES256"}, payload, key, algorithms=["ES256"])


@pytest.mark.parametrize("name", ["EdDSA", "Ed25519"])
def test_an_ed25519_key_has_two_names_for_its_algorithm(name: str) -> None:
    """RFC 8037 calls it EdDSA, and RFC 9864 Ed25519, which newer libraries write."""
    parts = [encoded({"alg": name}), encoded({"sub": "alice", "aud": APPKEY, "exp": NOW_S + HOUR_S})]
    key = load_pem_private_key(ED25519.private_pem.encode(), None)
    assert isinstance(key, Ed25519PrivateKey)
    made = ".".join([*parts, encoded(key.sign(".".join(parts).encode()))])
    assert proven(SetAliasRequest(alias="alice", proof=made), app(IDENTITY_MODE_REQUIRE, ED25519)) is True
    assert "its alg must be ES256" in refusal(made, app(IDENTITY_MODE_REQUIRE, P256))


def test_the_algorithm_follows_from_the_key_and_never_from_the_token() -> None:
    claims = encoded({"sub": "alice", "aud": APPKEY, "exp": NOW_S + HOUR_S})
    asked = app(IDENTITY_MODE_REQUIRE, P256, ED25519)
    for algorithm in ("none", "None", "HS256", "ES384", "RS256", "ES256K", "Ed448", "", "es256"):
        header = encoded({"alg": algorithm})
        # the public key as the secret of an HMAC: what a verifier that believes the header takes for a signature
        mac = hmac.digest(P256.public_pem.encode(), f"{header}.{claims}".encode(), hashlib.sha256)
        for signature in (mac, bytes(64), mac * 2):
            expected = "proof: its alg must be ES256 or EdDSA, which is what the app's keys are for"
            assert refusal(f"{header}.{claims}.{encoded(signature)}", asked) == expected
        assert refusal(f"{header}.{claims}.", asked).startswith("proof: it is no JWT")
    header = encoded({"alg": "ES256"})
    for signature in (bytes(64), b"\xff" * 64, bytes(63), bytes(65), bytes(1), mac):
        assert "wrong signature" in refusal(f"{header}.{claims}.{encoded(signature)}", asked)
    for extra in ({"crit": ["exp"]}, {"b64": False}):
        forged = encoded({"alg": "ES256", **extra})
        assert "crit or b64" in refusal(f"{forged}.{claims}.{encoded(bytes(64))}", asked)


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "..", "...", "a", "a.b", "a.b.c", "a.b.c.d", "\ud800.a.b", "é.é.é", "e30.e30.e30", "bnVsbA.e30.AA"),
        *(f"{encoded(b'[' * 3000)}.e30.AA", "W10.e30.AA", "A" * 4096, f"{encoded({'alg': 5})}.e30.AA"),
    ],
)
def test_what_is_no_proof_is_refused(text: str) -> None:
    with pytest.raises(ProofError, match=r"^proof: it"):
        verified(text, [public_key(P256.public_pem)], APPKEY, TOKEN, NOW_S)


def test_a_proof_in_another_spelling_is_refused() -> None:
    made = proof()
    for changed in (
        made + "=",
        made + "\n",
        f" {made}",
        made.replace(".", "=.", 1),
        made[:-1] + chr(ord(made[-1]) + 1),
    ):
        assert refusal(changed).startswith("proof: ")


def test_two_keys_verify_while_servers_change_over() -> None:
    both, new = app(IDENTITY_MODE_REQUIRE, P256, OTHER), app(IDENTITY_MODE_REQUIRE, OTHER)
    for key in (P256, OTHER):
        assert proven(SetAliasRequest(alias="alice", proof=proof(key=key)), both) is True
    assert "wrong signature" in refusal(proof(key=P256), new)
    assert proven(SetAliasRequest(alias="alice", proof=proof(key=OTHER)), new) is True


def test_what_a_device_without_a_proof_may_do_follows_from_the_mode() -> None:
    request, tags = SetAliasRequest(alias="alice"), AddStagsRequest(stags=["user:alice", "news"])
    assert proven(request, App(appkey=APPKEY)) is False
    assert proven(request, app(IDENTITY_MODE_OFF)) is False
    assert proven(request, app(IDENTITY_MODE_ACCEPT)) is False
    assert proven(tags, app(IDENTITY_MODE_ACCEPT, tags=("user:*",))) == []
    with pytest.raises(ForbiddenError, match=r"^proof is missing: .* requires a proof of its server for the alias$"):
        proven(request, app())
    with pytest.raises(ForbiddenError, match=r"for the tag 'user:alice'$"):
        proven(tags, app(tags=("user:*",)))
    with pytest.raises(ForbiddenError, match=r"for the tag 30007$"):
        proven(AddTagsRequest(tags=[5, 30007]), app(tags=("30000..32767",)))
    assert proven(AddStagsRequest(stags=["news"]), app(tags=("user:*",))) == []


def test_off_verifies_where_there_are_keys_and_notes_nothing() -> None:
    good = SetAliasRequest(alias="alice", proof=proof())
    assert proven(good, app(IDENTITY_MODE_OFF)) is False
    assert "wrong signature" in refusal(proof(key=OTHER), app(IDENTITY_MODE_OFF))
    assert proven(SetAliasRequest(alias="alice", proof="nonsense"), App(appkey=APPKEY)) is False


def test_a_proof_names_each_identity_tag() -> None:
    asked = app(tags=("user:*", "vip", "7", "30000..32767", "-5..-3"))
    named = proof(None, stags=["user:alice", "vip", "unasked"], tags=[7, 30001, -4])
    assert proven(AddStagsRequest(stags=["user:alice", "news"], proof=named), asked) == ["user:alice"]
    assert proven(AddStagsRequest(stags=["vip", "vipper"], proof=named), asked) == ["vip"]
    assert proven(AddTagsRequest(tags=[30001, 1, 7, -4], proof=named), asked) == [-4, 7, 30001]
    for request, claim in (
        (AddStagsRequest(stags=["user:bob"], proof=named), "stags"),
        (AddStagsRequest(stags=["user:alice", "user:bob"], proof=named), "stags"),
        (AddStagsRequest(stags=["user:alice"], proof=proof()), "stags"),
        (AddTagsRequest(tags=[30002], proof=named), "tags"),
        (AddTagsRequest(tags=[7], proof=proof(None, stags=["7"])), "tags"),
    ):
        with pytest.raises(SignError, match=rf"^proof: {claim} must name each identity tag of the request$"):
            proven(request, asked)


def test_a_device_hands_in_a_bounded_number_of_proofs() -> None:
    now_ms = NOW_S * 1000
    checks = IdentityChecks(lambda: now_ms)
    good = SetAliasRequest(alias="alice", proof=proof())
    wrong = SetAliasRequest(alias="alice", proof=proof(key=OTHER))
    for request in [good, wrong] * (PROOFS_AT_ONCE // 2):
        if request is good:
            assert proven(good, app(), checks=checks)
        else:
            with pytest.raises(SignError):
                proven(wrong, app(), checks=checks)
    for _ in range(100):
        with pytest.raises(TooManyRequestsError, match="too many proofs"):
            proven(good, app(), checks=checks)
    assert proven(good, app(), token="another", checks=checks)
    now_ms += PROOF_EVERY_MS
    assert proven(good, app(), checks=checks)
    with pytest.raises(TooManyRequestsError):
        proven(good, app(), checks=checks)


def test_a_proof_for_an_ios_device_names_its_token_in_any_spelling() -> None:
    token = "abcd" * 16
    for given_token in (token, token.upper(), f"<{token}>"):
        request = SetAliasRequest(alias="alice", proof=proof(token=given_token))
        assert proven(request, app(), token=token) is True


def test_only_public_keys_of_the_two_kinds_are_taken() -> None:
    pems = [P256.public_pem, ED25519.public_pem]
    assert checked_keys(pems) == pems
    assert checked_keys([P256.public_pem.replace("\n", "\r\n"), P256.public_pem]) == [P256.public_pem]
    names = key_ids(app(IDENTITY_MODE_OFF, P256, ED25519))
    assert [name.split()[0] for name in names] == ["ES256", "EdDSA"]
    curve = ec.generate_private_key(ec.SECP384R1()).public_key()
    rsa_key = rsa.generate_private_key(65537, 2048).public_key()
    others = [key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode() for key in (curve, rsa_key)]
    for pem, told in (
        (P256.private_pem, "this is a private key, which belongs on your server alone; give the public one"),
        (others[0], "must be an EC key on the curve P-256"),
        (others[1], "must be an EC key on the curve P-256"),
        ("hello", "this is no public key in PEM form"),
        ("", "this is no public key in PEM form"),
        (P256.public_pem[:60] + "AAAA" + P256.public_pem[64:], "this is no public key|P-256"),
        ("é" * 10, "this is no public key in PEM form"),
        ("x" * 5000, "has at most 4096 characters"),
    ):
        with pytest.raises(InputError, match=told) as caught:
            checked_keys([pem])
        assert str(caught.value).startswith("identity_keys: ")
    with pytest.raises(InputError, match="at most 2 keys"):
        checked_keys([*pems, OTHER.public_pem])


def test_identity_tags_are_names_beginnings_numbers_and_ranges() -> None:
    entries = ["user:*", "vip", "7", "-7", "30000..32767", "-5..5", "a..b"]
    assert checked_tags([*entries, "vip"]) == entries
    for wrong in ("*", "", "a*b*", "*x", "x" * 41, "40000", "5..4", "0..99999", "-99999..0"):
        with pytest.raises(InputError, match=r"^identity_tags: "):
            checked_tags([wrong])
    with pytest.raises(InputError, match="at most 20"):
        checked_tags([str(number) for number in range(21)])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
claims_values = st.fixed_dictionaries(
    {},
    optional={
        "sub": st.sampled_from(["alice", "bob", "", None, 5]),
        "aud": st.sampled_from([APPKEY, [APPKEY], ["x", APPKEY], "x", [], None, 5]),
        "exp": st.integers(NOW_S - 200, NOW_S + MAX_LIFETIME_S + 200) | json_values,
        "nbf": st.integers(NOW_S - 200, NOW_S + 200) | json_values,
        "iat": st.integers(NOW_S - 200, NOW_S + 200) | json_values,
        "token": st.sampled_from([TOKEN, "x", None, 5]),
        "tags": json_values,
        "other": json_values,
    },
)


@settings(max_examples=examples(200), deadline=None)
@given(claims=claims_values, key=st.sampled_from([P256, ED25519, OTHER]))
def test_what_is_accepted_a_second_implementation_accepts_too(claims: dict[str, Any], key: ProofKey) -> None:
    made = key.signed(claims)
    request = SetAliasRequest(alias="alice", proof=made)
    try:
        accepted = proven(request, app(IDENTITY_MODE_REQUIRE, P256, ED25519))
    except CarillonError:
        accepted = False
    assert accepted is _accepted_by_joserfc(made)


def _accepted_by_joserfc(made: str) -> bool:
    found = None
    for key, algorithm in (
        (ECKey.import_key(P256.public_pem), "ES256"),
        (OKPKey.import_key(ED25519.public_pem), "Ed25519"),
    ):
        try:
            found = jwt.decode(made, key, algorithms=[algorithm]).claims
        except (JoseError, ValueError):
            continue
    if found is None:
        return False
    numbers = [found.get(name) for name in ("exp", "nbf", "iat")]
    audience = found.get("aud", "")
    tags = found.get("tags", [])
    return (
        all(number is None or (type(number) in (int, float) and abs(number) < 1e300) for number in numbers)
        and found.get("sub") == "alice"
        and (audience == APPKEY or (isinstance(audience, list) and APPKEY in audience))
        and found.get("token") in (None, TOKEN)
        and found.get("exp") is not None
        and NOW_S - LEEWAY_S < found["exp"] <= NOW_S + MAX_LIFETIME_S + LEEWAY_S
        and all(number is None or number <= NOW_S + LEEWAY_S for number in numbers[1:])
        and isinstance(tags, list)
        and all(type(tag) is int and -32767 <= tag <= 32767 for tag in tags)
    )


@settings(max_examples=examples(500), deadline=None)
@given(
    place=st.integers(0, 400),
    new=st.sampled_from("AZaz09-_=+/. \n.é\ud800"),
    deletes=st.booleans(),
    key=st.sampled_from([P256, ED25519]),
)
def test_no_change_of_a_proof_leaves_it_valid(place: int, new: str, deletes: bool, key: ProofKey) -> None:
    made = proof(key=key)
    place %= len(made)
    changed = made[:place] + ("" if deletes else new) + made[place + 1 :]
    if changed != made:
        assert refusal(changed, app(IDENTITY_MODE_REQUIRE, P256, ED25519)).startswith("proof: ")


@settings(max_examples=examples(500), deadline=None)
@given(st.text(max_size=60) | st.from_regex(r"[A-Za-z0-9_-]{0,30}\.[A-Za-z0-9_-]{0,30}\.[A-Za-z0-9_-]{0,30}"))
def test_no_text_ends_the_verifier_otherwise(text: str) -> None:
    with pytest.raises(ProofError):
        verified(text, [public_key(P256.public_pem), public_key(ED25519.public_pem)], APPKEY, TOKEN, NOW_S)
