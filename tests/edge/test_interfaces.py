"""Transport errors: unknown paths, wrong methods, and bodies that are too large, cut off, slow or malformed."""

import asyncio
import codecs
import json
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.core.parsing.body import MAX_BODY_BYTES, BodyTimeout
from edge.core.parsing.canonical import parse
from edge.v2.apps import push_apps
from edge.v2.push.requests import push_order
from protos.registry.v1.apps_pb2 import App
from services.errors import InputError
from services.net.http.server import HttpListener
from testkit.edge.role import NOW_MS, EdgeInstallation
from testkit.edge.v2_bodies import broadcast
from testkit.examples import examples
from testkit.services import running_services
from testkit.signing import signed

JSON = "application/json;charset=utf-8"


UNKNOWN = [
    ("POST", "/", 404),
    ("POST", "/v2/pushes", 404),
    ("POST", "/v2/push/", 404),
    ("POST", "/v1/push", 404),
    ("GET", "/%ff%00", 404),
    ("GET", "/v2/push", 405),
    ("DELETE", "/v2/push", 405),
    ("PUT", "/device/v1", 405),
]


async def test_paths_and_methods(installation: EdgeInstallation) -> None:
    for method, path, status in UNKNOWN:
        for accept in ("*/*", "application/xml", "text/html"):
            answer = await installation.http.request(method, path, headers={"Accept": accept}, content=b"{}")
            assert answer.status_code == status
            assert answer.headers["content-type"] == JSON
            assert answer.json() == {"result": status, "desc": {404: "no such path", 405: "method not allowed"}[status]}


async def chunks(size: int) -> Any:
    for _ in range(size // 65536):
        yield b" " * 65536
    yield b" " * (size % 65536)


async def test_a_body_of_one_mebibyte_is_read_and_a_larger_one_not(installation: EdgeInstallation) -> None:
    app = await installation.app()
    body = signed(broadcast(app), installation.secrets[app.appkey])
    for exact in (body + b" " * (MAX_BODY_BYTES - len(body)), chunks(MAX_BODY_BYTES)):
        answer = await installation.http.post("/v2/push", content=exact)
        assert answer.status_code == 200
    for larger in (body + b" " * (MAX_BODY_BYTES + 1 - len(body)), chunks(MAX_BODY_BYTES + 1)):
        answer = await installation.http.post("/v2/push", content=larger)
        assert answer.status_code == 413
        assert answer.headers["content-type"] == JSON
        assert answer.json() == {"result": 413, "desc": f"the body is larger than {MAX_BODY_BYTES} bytes"}
    assert len(await installation.sent()) == 1


async def test_a_byte_order_mark_before_the_body_is_ignored(installation: EdgeInstallation) -> None:
    app = await installation.app()
    body = codecs.BOM_UTF8 + signed(broadcast(app), installation.secrets[app.appkey])
    assert (await installation.http.post("/v2/push", content=body)).json()["result"] == 0
    assert len(await installation.sent()) == 1


async def test_the_media_type_a_client_names_does_not_matter(installation: EdgeInstallation) -> None:
    app = await installation.app()
    body = signed(broadcast(app), installation.secrets[app.appkey])
    for media_type in ("application/x-www-form-urlencoded", "text/plain; charset=GBK", "multipart/form-data"):
        answer = await installation.http.post("/v2/push", content=body, headers={"Content-Type": media_type})
        assert answer.json()["result"] == 0


async def test_a_client_that_disconnects_inside_a_body_leaves_nothing(installation: EdgeInstallation) -> None:
    app = await installation.app()
    body = signed(broadcast(app), installation.secrets[app.appkey])
    url = installation.http.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"POST /v2/push HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (len(body) + 1) + body)
    writer.write_eof()
    await asyncio.wait_for(reader.read(), 60)
    writer.close()
    assert (await installation.post(body))["result"] == 0
    assert len(await installation.sent()) == 1


async def test_a_push_that_is_sent_is_answered_whatever_comes_behind_it(installation: EdgeInstallation) -> None:
    """Half of the clients end their sending direction, as `nc -N` does."""
    app = await installation.app()
    body = signed(broadcast(app), installation.secrets[app.appkey])
    head = b"POST /v2/push HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    port = installation.http.base_url.port
    for behind in (b"", b"\0", b"}", b"\r\n--x--\r\n", b"\r\n\r\n"):
        for ends in (False, True):
            answer = await plain_answer(port, head % len(body) + body + behind, ends=ends)
            assert (b'"result":0' in answer) is True, (behind, ends, answer)
    assert len(await installation.sent()) == 10
    cut = await plain_answer(port, head % (len(body) - 9) + body, ends=False)
    assert b'"result":400,"desc":"the body is not JSON' in cut.replace(b"input error: ", b"")
    assert b"Content-Length counts bytes, not characters" in cut
    cut = await plain_answer(port, head % (len(body) + 9) + body, ends=True)
    assert cut.startswith(b"HTTP/1.1 400 ")
    assert len(await installation.sent()) == 10


async def plain_answer(port: int | None, sent: bytes, *, ends: bool) -> bytes:
    """Return the whole answer to these bytes; with `ends` nothing is sent after them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    if ends:
        writer.write_eof()
    async with asyncio.timeout(60):
        head = await reader.readuntil(b"\r\n\r\n")
        found = head + await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
    writer.close()
    return found


@pytest.mark.parametrize("line", [b"POST /v2/push", b"POST /v2/push HTTP/0.9", b"POST /v2/push HTTP/2.0"])
async def test_other_versions_of_http_are_refused(installation: EdgeInstallation, line: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", installation.http.base_url.port)
    writer.write(line + b"\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    assert answer.startswith((b"HTTP/1.1 505 ", b"HTTP/1.1 400 "))
    assert b"must be 1.0 or 1.1" in answer or b"Invalid HTTP request" in answer


async def test_a_missing_body_is_answered_408() -> None:
    async def echo(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass

    listener = HttpListener("test", BodyTimeout(echo, seconds=0.05), "127.0.0.1", 0)
    async with running_services([listener]):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nslow")
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert answer.endswith(b'{"result":408,"desc":"no body within 0.05 s"}')


async def test_malformed_bodies_are_the_callers_fault(installation: EdgeInstallation) -> None:
    app = await installation.app()
    good = signed(broadcast(app), installation.secrets[app.appkey])
    bodies = [
        b"",
        b"\x00" * 100,
        b"{}",
        b"[]",
        b'{"sign":"x"}',
        good[:-1],
        good + b"x",
        good[:-1] + b',"sign":"twice"}',
        good[:-1] + b',"a":NaN}',
        good[:-1] + b',"a":"\\ud800"}',
        good[:-1] + b',"a":' + b"[" * 32 + b"]" * 32 + b"}",
        b"[" * MAX_BODY_BYTES,
    ]
    for body in bodies:
        answer = await installation.post(body)
        assert answer["result"] == 400, body[:100]
        assert answer["desc"].startswith("input error: ")
    assert not await installation.sent()


async def test_a_fault_of_the_service_is_500_without_details(installation: EdgeInstallation) -> None:
    app = await installation.app()
    await installation.log.close()
    answer = await installation.http.post("/v2/push", content=signed(broadcast(app), installation.secrets[app.appkey]))
    assert answer.status_code == 200
    assert answer.content == b'{"result":500,"desc":"internal error"}'


TARGET_FIELDS = ("tag", "not_tag", "stag", "not_stag", "alias", "token", "optfilter")
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["android", "ios", "1", "basic"]), inner)
    ),
    max_leaves=6,
)


@settings(max_examples=examples(400))
@given(
    st.fixed_dictionaries(
        {
            "sendTo": st.fixed_dictionaries(
                {
                    "appkey": st.just({"android": "1", "ios": "2"}) | json_values,
                    "userScope": st.integers(0, 9) | json_values,
                },
                optional=dict.fromkeys(TARGET_FIELDS, json_values),
            ),
            "msgStyle": st.fixed_dictionaries(
                {"basic": st.just({"content": "x", "is_notif": 1}) | json_values},
                optional={
                    "ios": json_values,
                    "android": st.fixed_dictionaries({"click_action": st.integers(0, 8), "click_param": json_values})
                    | json_values,
                },
            ),
        },
        optional={"option": json_values, "extra": json_values},
    )
)
def test_any_field_values_are_parsed_or_refused(body: dict[str, Any]) -> None:
    raw = json.dumps(body).encode()
    try:
        apps = push_apps(parse(raw))
        order = push_order(raw, apps, lambda ref: App(name="Test", default_period_s=60), NOW_MS, ZoneInfo("UTC"))
    except InputError:
        return
    assert order.pushes
    assert {push.app for push in order.pushes} <= {apps.android, *apps.ios}
