"""Generates the fuzzer's cases: valid requests and frames with mutations. The seed and the number determine a case."""

from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Any, NamedTuple

from msgspec.structs import replace

from testkit.subscriptions import subscription_keys_as_text
from tests.soak.fuzz.cases import HTTP_PORTS, Call, Case, Head, Payload, Pipeline, WireFrames
from tests.soak.fuzz.heads import mutated_head
from tests.soak.fuzz.values import COMPACT, STYLES, Mutator, Object, Raw, Value, mutated_bytes, parsed, written
from tests.soak.fuzz.wire import wire_frames


class Template(NamedTuple):
    """A valid call of an HTTP interface, with placeholders for names."""

    interface: str
    method: str
    path: str
    body: Object
    signers: tuple[str, ...]


_JSON = (b"content-type", b"application/json")
_HEADERS = (
    (b"content-type", b"text/plain"),
    (b"content-type", b"application/json; charset=utf-16"),
    (b"content-type", b"\xff"),
    (b"content-encoding", b"gzip"),
    (b"expect", b"100-continue"),
    (b"idempotency-key", b"key-1"),
    (b"idempotency-key", b""),
    (b"idempotency-key", b"k" * 300),
    (b"idempotency-key", b"\xe9\x00"),
    (b"x-forwarded-for", b"10.0.0.1, 256.1.1.1"),
    (b"x-forwarded-for", b"10.0.0.1"),
    (b"x-forwarded-for", b"192.0.2.1:80, ::ffff:127.0.0.1"),
    (b"x-forwarded-for", b"fe80::1%eth0, 127.0.0.1,,"),
    (b"x-forwarded-for", b"\xff" * 100),
    (b"x-request-id", b"a\x7fb"),
    (b"user-agent", b"\x80\xff"),
    (b"host", b"\xff:99999"),
    (b"cookie", b"; " * 500),
)
_PATHS = (
    "/",
    "/v2/pushes",
    "//v2/push",
    "/v2/push/",
    "/healthz",
    "/v2/%70ush",
    "/\u00e9",
    "/v2/push?x=%00",
    "/openapi.json",
)
_METHODS = ("GET", "HEAD", "PUT", "OPTIONS", "TRACE", "PATCH", "DELETE", "POST", "FOO")
_IDEMPOTENCY_KEYS = 200
_PIECES = (2, 3, 100, 2000)

_MAX_BODY_BYTES = 2 * 1024 * 1024
"""Twice the largest body of an edge: a longer one is refused likewise, and its bytes cost the fuzzer's own time."""


class Generator:
    """Makes the cases of one seed from valid calls and from valid frames of a welcomed device and of one to be."""

    def __init__(
        self, seed: int, calls: Sequence[Template], frames: Sequence[Object], hellos: Sequence[Object]
    ) -> None:
        self.seed = seed
        self._calls = calls
        self._frames = frames
        self._hellos = hellos
        self._bodies: list[Value] = [call.body for call in calls]
        self._all_frames = [*frames, *hellos]

    def case(self, number: int) -> Case:
        random = Random(f"{self.seed}/{number}")
        kind = random.random()
        payload: Payload
        if kind < 0.70:
            payload = self._call(random)
        elif kind < 0.72:
            payload = self._pipeline(random)
        elif kind < 0.75:
            payload = self._head(random)
        else:
            payload = self._wire_frames(random)
        return Case(self.seed, number, payload)

    def _call(self, random: Random) -> Call:
        template = random.choice(self._calls)
        headers, sign = [_JSON], None
        method, path, interface, signers = template.method, template.path, template.interface, list(template.signers)
        body = self._body(random, template.body, self._bodies)
        if random.random() < 0.05:
            headers = random.choice(([], [_JSON])) + random.sample(_HEADERS, random.choice((1, 1, 2, 6)))
        if random.random() < 0.02:
            method = random.choice(_METHODS)
        if random.random() < 0.02:
            path = random.choice(_PATHS)
        if random.random() < 0.02:
            interface = random.choice(HTTP_PORTS)
        if random.random() < 0.02:
            sign = random.choice(("", "0" * 32, "é" * 16, "0" * 10_000))
        if random.random() < 0.01:
            random.shuffle(signers)
        call = Call(interface, method, path, headers, body, signers, sign, by_socket=random.random() < 0.04)
        return self._sent_otherwise(random, call) if random.random() < 0.08 else call

    def _sent_otherwise(self, random: Random, call: Call) -> Call:
        """Return a call that is repeated, with an idempotency key or without, or whose body arrives in pieces."""
        change = random.random()
        if change < 0.5:
            key = (b"idempotency-key", b"key %d" % random.randrange(_IDEMPOTENCY_KEYS))
            headers = [*call.headers, key] if random.random() < 0.8 else call.headers
            return replace(call, headers=headers, times=random.choice((1, 1, 2, 5)))
        return replace(call, pieces=random.choice(_PIECES), leaves=random.random() < 0.3)

    def _pipeline(self, random: Random) -> Pipeline:
        """Return calls of one interface, more than may wait now and then."""
        calls = [self._call(random) for _ in range(20 if random.random() < 0.02 else random.choice((2, 3, 5)))]
        whole = [replace(call, leaves=False, times=1) for call in calls]
        return Pipeline(calls[0].interface, whole, leaves=random.random() < 0.2)

    def _body(self, random: Random, valid: Object, pool: Sequence[Value], *, as_bytes: bool = True) -> bytes:
        """Return JSON of a mutated value, one in five mutated as bytes too where that is allowed; long ones are cut."""
        mutator = Mutator(random, pool)
        kind = random.random()
        if kind < 0.01:
            value = mutator.enlarged(valid)
        elif kind < 0.03:
            value = valid
        else:
            value = mutator.mutated(valid)
        text = written(value, random.choice(STYLES) if random.random() < 0.1 else COMPACT)
        if random.random() < 0.003:
            return text.encode(random.choice(("utf-16", "utf-32", "utf-8-sig")), "surrogatepass")[:_MAX_BODY_BYTES]
        data = text.encode(errors="surrogatepass")
        return (mutated_bytes(random, data) if kind > 0.8 and as_bytes else data)[:_MAX_BODY_BYTES]

    def _head(self, random: Random) -> Head:
        template = random.choice(self._calls)
        return mutated_head(random, template.method, template.path, written(template.body).encode())

    def _wire_frames(self, random: Random) -> WireFrames:
        welcomed = random.random() < 0.9
        usual, other = (self._frames, self._hellos) if welcomed else (self._hellos, self._frames)

        def payload(as_bytes: bool) -> bytes:
            valid = random.choice(other if random.random() < 0.04 else usual)
            return self._body(random, valid, self._all_frames, as_bytes=as_bytes)

        return wire_frames(random, payload, welcomed=welcomed)


_PROOF = ".".join(
    ("eyJhbGciOiJFUzI1NiJ9", "eyJzdWIiOiJhbGljZSIsImF1ZCI6IjEiLCJleHAiOjE3OTAwMDAwMDAsInN0YWdzIjpbXX0", "A" * 86)
)
"""A proof of the right form, which no key has signed."""


def device_frames(msgid: int) -> list[Object]:
    """Return a valid frame of every kind that a welcomed device sends."""
    device = Object([("brand", "b"), ("region", "北京市"), ("os_version", "14")])
    keys = Object(subscription_keys_as_text().items())
    made: list[dict[str, Any]] = [
        {"type": "ack", "msgids": [msgid, 5]},
        {"type": "report", "event": "shown", "msgid": msgid},
        {"type": "activity", "event": "open"},
        {"type": "ping"},
        {"type": "set_alias", "id": 1, "alias": "alice"},
        {"type": "set_alias", "id": 9, "alias": "alice", "proof": _PROOF},
        {"type": "clear_alias", "id": 2},
        {"type": "add_tags", "id": 3, "tags": [1, 2]},
        {"type": "remove_tags", "id": 4, "tags": [1]},
        {"type": "add_stags", "id": 5, "stags": ["a", "é"]},
        {"type": "add_stags", "id": 10, "stags": ["user:alice"], "proof": _PROOF},
        {"type": "remove_stags", "id": 6, "stags": ["a"]},
        {"type": "set_attributes", "id": 7, "device": device},
        {"type": "set_address", "id": 11, "channel": "fcm", "address": "c:APA91b"},
        {"type": "set_address", "id": 12, "channel": "webpush", "address": "https://push.example.org/1", "keys": keys},
        {"type": "clear_address", "id": 13, "channel": "fcm"},
        {"type": "get_device", "id": 8},
    ]
    return [Object(fields.items()) for fields in made]


def hello_frames(appkeys: Sequence[str], tokens: Sequence[str], keys: Sequence[str]) -> list[Object]:
    """Return first frames: of new devices, and of known ones with keys of their own, of each other and of other apps.

    The key of the first token is the first one, and so on, all of the first app.
    """
    device = Object([("brand", "b"), ("app_version", "1.0")])
    new = [Object([("type", "hello"), ("appkey", app), ("device", device), ("heartbeat", 60)]) for app in appkeys]
    known = [
        Object([("type", "hello"), ("appkey", Raw(app)), ("token", token), ("key", key), ("device", device)])
        for app, token, key in product(appkeys, tokens, keys)
    ]
    return [*new, *known]


def template(interface: str, method: str, path: str, body: str, signers: tuple[str, ...]) -> Template:
    return Template(interface, method, path, parsed(body), signers)
