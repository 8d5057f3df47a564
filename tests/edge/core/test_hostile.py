"""Hostile input on every endpoint is refused as the caller's fault, and other callers are not affected."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import analytics.main
import analytics.settings
import services.delivery.main
import services.delivery.settings
from edge.core.parsing.body import MAX_BODY_BYTES
from testkit.edge.role import BACKENDS, EdgeInstallation, edge_installation
from testkit.edge.v2_bodies import broadcast
from testkit.edge.valid_requests import ValidRequest, valid_requests
from testkit.examples import examples
from testkit.signing import reference_sign, signed

JSON = "application/json;charset=utf-8"
EVERY_ROLE = {
    **BACKENDS,
    "delivery": (services.delivery.settings.DeliverySettings, services.delivery.main.build),
    "analytics": (analytics.settings.AnalyticsSettings, analytics.main.build),
}
REQUESTS = 37
"""Number of valid requests, which the strategies need before the requests exist."""


class Text(str):
    """Text that is sent as JSON unchanged, valid or not."""

    __slots__ = ()


TEXTS = [
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "nul",
        "'x'",
        "0x10",
        "01",
        "+1",
        "1.",
        ".5",
        "1e",
        '"\t"',
        '"\\x"',
        '"x',
        "]",
        "}",
    ),
    *("1e400", "-1e400", "1e-400", "-0", "1E5", "1.0", "9" * 30, "-" + "9" * 400, "9" * 5000, "0." + "1" * 5000),
    *(
        '"\\ud800"',
        '"\\udc00\\ud800"',
        '"\\ud83d\\ude00"',
        '"\\u0000"',
        '"\u0000"',
        '"\ufeff"',
        '"\u202e"',
        '"' + "é" * 9000 + '"',
    ),
    *("[" * 40 + "]" * 40, '{"a":' * 40 + "1" + "}" * 40, "[" * 30000, '{"a":1,"a":2}', "[1,]", '{"a"}', "/**/1"),
    *(
        "null",
        "true",
        "0",
        "-1",
        "2147483648",
        "18446744073709551616",
        '""',
        '"0"',
        "[]",
        "{}",
        "[[]]",
        "[null]",
        '{"":null}',
    ),
]
values = st.one_of(
    st.sampled_from(TEXTS).map(Text),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ),
)
spoilings = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from(["replace", "remove", "repeat", "enter"]), values),
    min_size=1,
    max_size=2,
)


@pytest.fixture
async def everything(tmp_path: Path) -> AsyncIterator[tuple[EdgeInstallation, list[ValidRequest]]]:
    async with edge_installation(tmp_path, EVERY_ROLE) as installation:
        yield installation, await valid_requests(installation)


def test_texts_are_written_as_they_are() -> None:
    assert written({"a": [Text("NaN"), 1]}) == '{"a":[NaN,1]}'


async def test_every_valid_request_is_answered(everything: tuple[EdgeInstallation, list[ValidRequest]]) -> None:
    installation, requests = everything
    assert len(requests) == REQUESTS
    cancelled = 0
    for valid in requests:
        answer = await send(installation, valid, signed(valid.body, *valid.secrets))
        cancelled += answer.get("desc", "").endswith("the task was cancelled already")
        assert answer["result"] == 0 or cancelled == 1, (valid, answer)
    assert cancelled == 1, "the task is cancelled through two interfaces"


@settings(
    max_examples=examples(600),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(index=st.integers(0, REQUESTS - 1), spoiled=spoilings)
async def test_a_spoiled_request_is_the_callers_fault(
    everything: tuple[EdgeInstallation, list[ValidRequest]], index: int, spoiled: list[tuple[int, str, Any]]
) -> None:
    installation, requests = everything
    valid = requests[index]
    body: Any = valid.body
    for place, how, value in spoiled:
        body = spoil(body, place, how, value)
    answer = await send(installation, valid, with_sign(written(body), *valid.secrets))
    event(f"result {answer['result']}")
    assert answer["result"] in (0, 400, 401), answer
    if answer["result"] == 400:
        assert answer["desc"].startswith("input error: ")


@settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(
    index=st.integers(0, REQUESTS - 1), place=st.integers(0, 10**6), cut=st.integers(0, 50), noise=st.binary(max_size=8)
)
async def test_spoiled_bytes_are_the_callers_fault(
    everything: tuple[EdgeInstallation, list[ValidRequest]], index: int, place: int, cut: int, noise: bytes
) -> None:
    installation, requests = everything
    valid = requests[index]
    raw = signed(valid.body, *valid.secrets)
    at = place % len(raw)
    spoiled = raw[:at] + noise + raw[at + cut :]
    answer = await send(installation, valid, spoiled)
    assert answer["result"] in (400, 401) or json.loads(spoiled) == json.loads(raw)  # white space added between tokens


async def test_transport_of_every_endpoint(everything: tuple[EdgeInstallation, list[ValidRequest]]) -> None:
    installation, requests = everything
    for valid in {(valid.interface, valid.method, valid.path): valid for valid in requests}.values():
        http = valid.client(installation)
        raw = signed(valid.body, *valid.secrets)
        for content in (raw + b" " * (2 * MAX_BODY_BYTES), b"[" * 2 * MAX_BODY_BYTES):
            answer = await http.request(valid.method, valid.path, content=content)
            assert (answer.status_code, answer.json()["result"]) == (413, 413)
            assert answer.headers["content-type"] == JSON
        for media_type in ("application/x-www-form-urlencoded", "text/plain; charset=GBK", "text/xml", "nonsense"):
            headers = {"Content-Type": media_type, "Accept": "text/html"}
            answer = await http.request(valid.method, valid.path, content=raw, headers=headers)
            assert answer.status_code == 200
            assert answer.headers["content-type"] == JSON
            assert answer.json()["result"] in (0, 400)
        for method in {"GET", "PUT", "PATCH", "POST", "DELETE"} - methods_of(requests, valid):
            answer = await http.request(method, valid.path, content=raw)
            assert (answer.status_code, answer.json()["result"]) == (405, 405)


async def test_pipelined_requests_are_answered_in_order(installation: EdgeInstallation) -> None:
    app = await installation.app()
    good = signed(broadcast(app), installation.secrets[app.appkey])
    url = installation.http.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    for content in (good, b"{", good, b"NaN", good):
        writer.write(b"POST /v2/push HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(content) + content)
    results = []
    async with asyncio.timeout(60):
        for _ in range(5):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
            results.append(json.loads(await reader.readexactly(length))["result"])
    writer.close()
    assert results == [0, 400, 0, 400, 0]


async def test_slow_senders_do_not_delay_others(installation: EdgeInstallation) -> None:
    app = await installation.app()
    good = signed(broadcast(app), installation.secrets[app.appkey])
    url = installation.http.base_url
    slow = [await asyncio.open_connection(url.host, url.port) for _ in range(200)]
    for _, writer in slow:
        writer.write(b"POST /v2/push HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(good) + good[:-1])
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*(installation.post(good) for _ in range(20)))
        assert [answer["result"] for answer in answers] == [0] * 20
        for _, writer in slow:
            writer.write(good[-1:])
        heads = await asyncio.gather(*(reader.readline() for reader, _ in slow))
    assert set(heads) == {b"HTTP/1.1 200 OK\r\n"}
    for _, writer in slow:
        writer.close()


async def send(installation: EdgeInstallation, valid: ValidRequest, content: bytes) -> dict[str, Any]:
    """Return the answer, and check that another request is answered meanwhile."""
    http = valid.client(installation)
    answer, health = await asyncio.gather(
        http.request(valid.method, valid.path, content=content), installation.http.post("/v2/push", content=b"{}")
    )
    assert health.json()["desc"] == "input error: sign is missing"
    assert (answer.status_code, answer.headers["content-type"]) == (200, JSON), answer.text
    content_of: dict[str, Any] = answer.json()
    return content_of


def methods_of(requests: list[ValidRequest], valid: ValidRequest) -> set[str]:
    return {other.method for other in requests if (other.interface, other.path) == (valid.interface, valid.path)}


def with_sign(text: str, *secrets: str) -> bytes:
    """Add the right sign to the body, or any sign when it has no canonical text."""
    raw = text.encode()
    try:
        sign = reference_sign(raw, *secrets)
    except (ValueError, RecursionError, AttributeError):
        sign = "0" * 32
    return raw[:-1] + b',"sign":"%s"}' % sign.encode() if text.startswith('{"') else raw


def written(value: Any) -> str:
    if isinstance(value, Text):
        return value
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{written(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def spoil(body: Any, place: int, how: str, value: Any) -> Any:
    """Return the body with the place-th member replaced, removed or repeated, or with another one beside it."""
    paths = list(members(body))
    if not paths:
        return body
    *parents, last = paths[place % len(paths)]
    body = json.loads(json.dumps(body), object_hook=dict) if not has_text(body) else body
    inside = body
    for step in parents:
        inside = inside[step]
    match how:
        case "replace":
            inside[last] = value
        case "remove":
            del inside[last]
        case "repeat" if isinstance(inside, list):
            inside[last:last] = [inside[last]] * 1001
        case _ if isinstance(inside, list):
            inside.append(value)
        case _:
            inside["unknown" if how == "enter" else f"{last} "] = value
    return body


def members(value: Any, *path: Any) -> Any:
    """Yield the path of each member at any depth."""
    steps = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for step in steps:
        yield [*path, step]
        yield from members(value[step], *path, step)


def has_text(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, Text) or any(has_text(member) for member in inner)
