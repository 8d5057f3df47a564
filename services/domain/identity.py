"""Proofs of aliases and identity tags, by which the app's server says which user is on a device.

Every copy of an app contains its appkey, so any device may claim any alias. The app's server, which knows its users,
signs a JWT (JWS compact serialization, RFC 7515 and 7519) for the device on which a user has logged in. The server's
public key is a setting of the app, so that a front end verifies proofs without any secret and without a call.

The algorithm follows from the key, never from the token: ES256 for EC P-256, EdDSA or Ed25519 for Ed25519.
"""

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from protos.registry.v1.apps_pb2 import (
    IDENTITY_MODE_ACCEPT,
    IDENTITY_MODE_OFF,
    IDENTITY_MODE_REQUIRE,
    App,
    Identity,
    IdentityMode,
)
from protos.registry.v1.devices_pb2 import DeviceCommand
from services.domain.device_protocol.frames import (
    MAX_NAME_BYTES,
    AddStagsRequest,
    AddTagsRequest,
    Change,
    SetAliasRequest,
)
from services.domain.ios_tokens import spellings
from services.domain.text import refuse_nul
from services.errors import Code, ForbiddenError, InputError, SignError, TooManyRequestsError
from services.process.metrics import IDENTITY_PROOFS

MAX_KEYS = 2
"""Upper bound of an app's public keys: the one in use and, while app servers change over, its successor."""

MAX_KEY_BYTES = 4096
MAX_TAGS = 20
"""Upper bound of the entries that name identity tags."""

MAX_LIFETIME_S = 24 * 3600
"""Upper bound of the time until a proof expires: a stolen one is worth nothing a day later."""

LEEWAY_S = 60
"""How far the clocks of the app's server and of the service may differ."""

PROOFS_AT_ONCE = 10
PROOF_EVERY_MS = 6_000
"""A device may hand in PROOFS_AT_ONCE proofs at once, then one each PROOF_EVERY_MS: each costs some 0.1 ms of CPU."""

_MAX_DEVICES = 50_000
_MAX_TAG = 32767
_SIGNATURE_BYTES = 64
_MADE_FOR_S = 3600
_ECDSA = ec.ECDSA(hashes.SHA256())

PublicKey: TypeAlias = ec.EllipticCurvePublicKey | Ed25519PublicKey
Tag = TypeVar("Tag", int, str)
ModeName: TypeAlias = Literal["off", "accept", "require"]
MODE_NAMES: Mapping[int, ModeName] = MappingProxyType(
    {IDENTITY_MODE_OFF: "off", IDENTITY_MODE_ACCEPT: "accept", IDENTITY_MODE_REQUIRE: "require"}
)
MODES: Mapping[str, "IdentityMode.ValueType"] = MappingProxyType(
    {"off": IDENTITY_MODE_OFF, "accept": IDENTITY_MODE_ACCEPT, "require": IDENTITY_MODE_REQUIRE}
)


class _Header(msgspec.Struct, frozen=True):
    """The JOSE header. A `kid` is ignored: each of the at most two keys is tried."""

    alg: str
    crit: object = None
    b64: object = None


class ProofClaims(msgspec.Struct, frozen=True):
    """The claims of a proof: the device may have `sub` as its alias, and the identity tags in `tags` and `stags`.

    `aud` is or contains the appkey; with `token`, the proof counts for that device alone. Times are seconds since 1970.
    """

    exp: float
    sub: str | None = None
    aud: str | list[str] = ""
    nbf: float | None = None
    iat: float | None = None
    token: str | None = None
    tags: list[Annotated[int, msgspec.Meta(ge=-_MAX_TAG, le=_MAX_TAG)]] = []
    stags: list[str] = []


_headers = msgspec.json.Decoder(_Header)
_claims = msgspec.json.Decoder(ProofClaims)


class TagRange(NamedTuple):
    """Number tags from `first` to `last`."""

    first: int
    last: int


class IdentityRules:
    """The identity setting of one app, parsed: its mode, its public keys, and its identity tags."""

    def __init__(self, identity: Identity) -> None:
        """Parse the setting. ValueError: a text is no public key, or an entry names no tag."""
        self.mode = identity.mode or IDENTITY_MODE_OFF
        self.keys = [public_key(pem) for pem in identity.keys]
        entries = [_parsed_tag(entry) for entry in identity.tags]
        self._ranges = [entry for entry in entries if isinstance(entry, TagRange)]
        names = [entry for entry in entries if isinstance(entry, str)]
        self._names = frozenset(name for name in names if not name.endswith("*"))
        self._beginnings = tuple(name.removesuffix("*") for name in names if name.endswith("*"))

    @property
    def has_tags(self) -> bool:
        """Whether the setting names any identity tags."""
        return bool(self._ranges or self._names or self._beginnings)

    def is_identity_tag(self, tag: int | str) -> bool:
        """Return whether a number tag or a string tag addresses one person."""
        if isinstance(tag, int):
            return any(first <= tag <= last for first, last in self._ranges)
        return tag in self._names or tag.startswith(self._beginnings)


class IdentityChecks:
    """Checks the identity of devices' requests, and bounds the CPU time that a device's proofs take.

    A device is forgotten once many others have handed in proofs since; it may then hand in PROOFS_AT_ONCE again.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._used_ms: OrderedDict[tuple[str, str], int] = OrderedDict()

    def check(self, app: App, token: str, request: Change, command: DeviceCommand) -> None:
        """Check the proof of a request, and note in its command what is proven.

        SignError: the proof is wrong; says how. ForbiddenError: the app requires a proof, and there is none.
        TooManyRequestsError: the device has handed in too many proofs.
        """
        if not isinstance(request, SetAliasRequest | AddTagsRequest | AddStagsRequest):
            return
        rules = identity_rules(app)
        claims = None
        if request.proof is not None and rules.keys:
            self._take(app.appkey, token)
            claims = self._counted(rules, app.appkey, token, request)
        match request:
            case SetAliasRequest():
                if claims is None and rules.mode == IDENTITY_MODE_REQUIRE:
                    raise _missing("the alias")
                command.set_alias.proven = claims is not None and rules.mode != IDENTITY_MODE_OFF
            case AddTagsRequest():
                command.add_tags.proven.extend(_proven(rules, request.tags, claims is not None))
            case AddStagsRequest():
                command.add_stags.proven.extend(_proven(rules, request.stags, claims is not None))

    def _take(self, appkey: str, token: str) -> None:
        """Count a proof of the device. `used_ms` is the time from which on it may hand in PROOFS_AT_ONCE again."""
        now_ms = self._now_ms()
        used_ms = max(self._used_ms.pop((appkey, token), now_ms), now_ms) + PROOF_EVERY_MS
        is_over = used_ms > now_ms + PROOFS_AT_ONCE * PROOF_EVERY_MS
        self._used_ms[appkey, token] = used_ms - PROOF_EVERY_MS if is_over else used_ms
        if len(self._used_ms) > _MAX_DEVICES:
            self._used_ms.popitem(last=False)
        if is_over:
            IDENTITY_PROOFS.labels("too many").inc()
            raise TooManyRequestsError("proof: too many proofs from this device; repeat the request later", 10)

    def _counted(
        self, rules: IdentityRules, appkey: str, token: str, request: SetAliasRequest | AddTagsRequest | AddStagsRequest
    ) -> ProofClaims:
        try:
            claims = verified(request.proof or "", rules.keys, appkey, token, self._now_ms() / 1000)
            _check_names(rules, request, claims)
        except ProofError as error:
            IDENTITY_PROOFS.labels(error.why).inc()
            raise
        IDENTITY_PROOFS.labels("proven").inc()
        return claims


class ProofError(SignError):
    """The proof is wrong; `why` is the reason in one or two words, for the metric."""

    def __init__(self, why: str, text: str) -> None:
        super().__init__(f"proof: {text}")
        self.why = why


def identity_mode(app: App | None) -> "IdentityMode.ValueType":
    """Return the app's mode; off where it is not set."""
    return (app.identity.mode or IDENTITY_MODE_OFF) if app else IDENTITY_MODE_OFF


def identity_mode_name(app: App) -> ModeName:
    """Return the app's mode as settings and answers name it."""
    return MODE_NAMES.get(identity_mode(app), "off")


def key_ids(app: App) -> list[str]:
    """Return a name for each public key: the algorithm and the beginning of the SHA-256 of the key in DER form.

    Such as `ES256 3f2a91c07d55e1b8`; `openssl pkey -pubin -in public.pem -outform der | sha256sum` prints the same.
    """
    found: list[str] = []
    for key in identity_rules(app).keys:
        digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
        found.append(f"{_algorithm(key)} {digest[:16]}")
    return found


def identity_rules(app: App) -> IdentityRules:
    """Return the parsed identity setting of the app; equal settings are parsed once."""
    return _rules(app.identity.SerializeToString(deterministic=True))


@lru_cache(maxsize=1024)
def _rules(identity: bytes) -> IdentityRules:
    return IdentityRules(Identity.FromString(identity))


def proven_by_server(app: App | None, stags: Iterable[str]) -> list[str]:
    """Return the identity tags among string tags that the app's server gives by a signed request."""
    if app is None or identity_mode(app) == IDENTITY_MODE_OFF:
        return []
    rules = identity_rules(app)
    return sorted({stag for stag in stags if rules.is_identity_tag(stag)})


def public_key(pem: str, at: str = "the key") -> PublicKey:
    """Return the public key of a PEM text at this path. InputError: it is no key for ES256 or EdDSA."""
    if "PRIVATE KEY" in pem:
        raise InputError(Code.PRIVATE_KEY, at=at)
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(Code.NO_PUBLIC_KEY, at=at) from None
    if isinstance(key, Ed25519PublicKey) or (
        isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    ):
        return key
    raise InputError(Code.WRONG_KIND_OF_KEY, at=at)


def checked_keys(pems: Sequence[str]) -> list[str]:
    """Return the PEM texts of public keys, normalised. InputError: a text is no public key, or there are too many."""
    if len(pems) > MAX_KEYS:
        raise InputError(Code.TOO_MANY_KEYS, at="identity_keys", most=MAX_KEYS)
    found: list[str] = []
    for pem in pems:
        if len(pem) > MAX_KEY_BYTES:
            raise InputError(Code.KEY_TOO_LONG, at="identity_keys", most=MAX_KEY_BYTES)
        key = public_key(pem, "identity_keys")
        found.append(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())
    return list(dict.fromkeys(found))


def checked_tags(entries: Sequence[str]) -> list[str]:
    """Return the entries without repetitions. InputError: an entry names no identity tag, or there are too many."""
    if len(entries) > MAX_TAGS:
        raise InputError(Code.TOO_MANY_NAMES, at="identity_tags", most=MAX_TAGS)
    for entry in entries:
        refuse_nul(entry, "identity_tags")
        _parsed_tag(entry)
    return list(dict.fromkeys(entries))


def verified(proof: str, keys: Sequence[PublicKey], appkey: str, token: str, now_s: float) -> ProofClaims:
    """Return the claims of a proof for the device. ProofError: no key of the app has signed it, or it does not hold.

    The claims are parsed only once the signature is verified.
    """
    encoded_header, _, rest = proof.partition(".")
    encoded_claims, _, encoded_signature = rest.partition(".")
    header = _parsed_header(_decoded(encoded_header))
    payload, signature = _decoded(encoded_claims), _decoded(encoded_signature)
    able = [key for key in keys if header.alg in (_algorithm(key), _other_name(key))]
    if not able:
        algorithms = " or ".join(sorted({_algorithm(key) for key in keys}))
        raise ProofError("algorithm", f"its alg must be {algorithms}, which is what the app's keys are for")
    signed = proof[: len(encoded_header) + 1 + len(encoded_claims)].encode()
    if len(signature) != _SIGNATURE_BYTES or not any(_is_signed(key, signature, signed) for key in able):
        raise ProofError("signature", "wrong signature: no key of the app has signed it")
    try:
        claims = _claims.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProofError("malformed", f"its claims are wrong: {_in_words(error)}") from None
    _check_claims(claims, appkey, token, now_s)
    return claims


def made_proof(
    private_pem: str, appkey: str, alias: str | None, tags: Sequence[int], stags: Sequence[str], now_s: float
) -> str:
    """Return a proof for an hour, as an app's server makes it. ValueError: the PEM text is no usable private key."""
    try:
        key = load_pem_private_key(private_pem.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("this is no private key in PEM form, or one with a password") from None
    is_p256 = isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)
    if not (is_p256 or isinstance(key, Ed25519PrivateKey)):
        raise ValueError("the key must be an EC key on the curve P-256 (for ES256) or an Ed25519 key (for EdDSA)")
    claims: dict[str, object] = {"aud": appkey, "iat": int(now_s), "exp": int(now_s) + _MADE_FOR_S}
    claims |= {name: value for name, value in (("sub", alias), ("tags", list(tags)), ("stags", list(stags))) if value}
    header = {"alg": "ES256" if is_p256 else "EdDSA"}
    signed = b".".join(_encoded(msgspec.json.encode(part)) for part in (header, claims))
    if isinstance(key, Ed25519PrivateKey):
        signature = key.sign(signed)
    else:
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        r, s = decode_dss_signature(key.sign(signed, _ECDSA))
        signature = r.to_bytes(32, "big") + s.to_bytes(32, "big")
    return b".".join((signed, _encoded(signature))).decode()


def _check_claims(claims: ProofClaims, appkey: str, token: str, now_s: float) -> None:
    audience = [claims.aud] if isinstance(claims.aud, str) else claims.aud
    if appkey not in audience:
        raise ProofError("other app", "it is for another app: aud must be or contain the appkey")
    if claims.exp <= now_s - LEEWAY_S:
        raise ProofError("expired", "it has expired (exp); ask your server for a new one")
    if claims.exp > now_s + MAX_LIFETIME_S + LEEWAY_S:
        raise ProofError("too long", f"it expires too late: exp must be within {MAX_LIFETIME_S // 3600} hours")
    if any(from_s is not None and from_s > now_s + LEEWAY_S for from_s in (claims.nbf, claims.iat)):
        raise ProofError("not yet", "it does not hold yet (nbf, iat): compare the clocks")
    if claims.token is not None and token not in spellings(claims.token):
        raise ProofError("other device", "it is for another device: token is not that of this one")


def _check_names(
    rules: IdentityRules, request: SetAliasRequest | AddTagsRequest | AddStagsRequest, claims: ProofClaims
) -> None:
    """Check that the proof names the alias or each identity tag of the request."""
    match request:
        case SetAliasRequest(alias=alias):
            if claims.sub is None or claims.sub != alias:
                raise ProofError("other alias", "it is for another alias: sub must be the alias")
        case AddTagsRequest(tags=tags):
            _check_named(rules, tags, claims.tags, "tags")
        case AddStagsRequest(stags=stags):
            _check_named(rules, stags, claims.stags, "stags")


def _check_named(rules: IdentityRules, wanted: Sequence[int | str], named: Collection[int | str], claim: str) -> None:
    named = frozenset(named)
    if any(rules.is_identity_tag(tag) and tag not in named for tag in wanted):
        raise ProofError("other tags", f"{claim} must name each identity tag of the request")


def _proven(rules: IdentityRules, tags: Sequence[Tag], is_proven: bool) -> list[Tag]:
    """Return the identity tags of a request if they are proven. ForbiddenError: they must be, and are not."""
    if rules.mode == IDENTITY_MODE_OFF:
        return []
    identity = sorted({tag for tag in tags if rules.is_identity_tag(tag)})
    if identity and not is_proven and rules.mode == IDENTITY_MODE_REQUIRE:
        raise _missing(f"the tag {identity[0]!r}")
    return identity if is_proven else []


def _missing(what: str) -> ForbiddenError:
    IDENTITY_PROOFS.labels("missing").inc()
    return ForbiddenError(f"proof is missing: this app requires a proof of its server for {what}")


def _parsed_tag(entry: str) -> TagRange | str:
    """Return a range of number tags, or a string tag or the beginning of one. InputError: it is neither."""
    first, dots, last = entry.partition("..")
    numbers = [_number(text) for text in ((first, last) if dots else (entry,))]
    if None not in numbers:
        found = TagRange(numbers[0] or 0, numbers[-1] or 0)
        if not -_MAX_TAG <= found.first <= found.last <= _MAX_TAG:
            raise InputError(Code.NO_TAG_RANGE, at="identity_tags", text=entry, least=-_MAX_TAG, most=_MAX_TAG)
        return found
    name = entry.removesuffix("*")
    if not name or "*" in name or len(name.encode()) > MAX_NAME_BYTES:
        raise InputError(Code.NO_TAG, at="identity_tags", text=entry[:50], most=MAX_NAME_BYTES)
    return entry


def _number(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= len(str(_MAX_TAG)) else None


def _algorithm(key: PublicKey) -> str:
    return "EdDSA" if isinstance(key, Ed25519PublicKey) else "ES256"


def _other_name(key: PublicKey) -> str:
    """Return the name of the algorithm by RFC 9864, which newer libraries write in place of EdDSA."""
    return "Ed25519" if isinstance(key, Ed25519PublicKey) else "ES256"


def _is_signed(key: PublicKey, signature: bytes, signed: bytes) -> bool:
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, signed)
        else:
            r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
            key.verify(encode_dss_signature(r, s), signed, _ECDSA)
    except InvalidSignature:
        return False
    return True


def _decoded(part: str) -> bytes:
    """Return the bytes of a part of a proof, which is base64url without padding in its only spelling."""
    try:
        found = urlsafe_b64decode(part + "=" * (-len(part) % 4))
        is_canonical = _encoded(found) == part.encode()
    except (ValueError, UnicodeEncodeError):
        is_canonical = False
    if not is_canonical or not part:
        raise ProofError("malformed", "it is no JWT: three parts in base64url with dots between them")
    return found


def _encoded(part: bytes) -> bytes:
    return urlsafe_b64encode(part).rstrip(b"=")


def _parsed_header(encoded: bytes) -> _Header:
    try:
        header = _headers.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ProofError("malformed", "its header is no JSON object with alg") from None
    if header.crit is not None or header.b64 is not None:
        raise ProofError("malformed", "its header must not have crit or b64")
    return header


def _in_words(error: Exception) -> str:
    text = str(error).replace("`", "").replace("$.", "")
    return text[0].lower() + text[1:] if isinstance(error, msgspec.ValidationError) else "they are no JSON object"
