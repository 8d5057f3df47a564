"""The request that opens a WebSocket: what is accepted, what is refused and how, in any pieces."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.websocket.protocol import MAX_HEAD_BYTES, UpgradeError, UpgradeReader, accepted, refused
from testkit.gateway.websocket import UPGRADE

PATH = b"/device/v1"
KEY = b"dGhlIHNhbXBsZSBub25jZQ=="


def status(request: bytes) -> int:
    """Return the status with which the request is refused."""
    with pytest.raises(UpgradeError) as error:
        UpgradeReader(PATH).read(request)
    answer = refused(error.value)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % error.value.status)
    assert b"Content-Length: %d\r\n" % len(body) in head
    return int(error.value.status)


def replaced(before: bytes, after: bytes) -> bytes:
    assert before in UPGRADE
    return UPGRADE.replace(before, after)


def test_the_answer_proves_the_key_as_in_the_rfc() -> None:
    answer = accepted(KEY, None)
    assert answer.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n" in answer
    assert b"\r\nSec-WebSocket-Protocol: one\r\n\r\n" in accepted(KEY, "one")


@pytest.mark.parametrize("size", [1, 7, len(UPGRADE), len(UPGRADE) + 5])
def test_a_request_may_come_in_pieces_and_with_frames_behind_it(size: int) -> None:
    reader, sent = UpgradeReader(PATH), UPGRADE + b"frame"
    for start in range(0, len(sent), size):
        found = reader.read(sent[start : start + size])
        if found is not None:
            request, rest = found
            assert (request.key, rest + sent[start + size :]) == (KEY, b"frame")
            return
    pytest.fail("the request is complete")


def test_subprotocols_and_forwarded_addresses_may_be_in_several_lines() -> None:
    lines = b"Sec-WebSocket-Protocol: a, b\r\nX-Forwarded-For: 192.0.2.1\r\n"
    more = b"sec-websocket-protocol:c\r\nx-forwarded-for: 192.0.2.2, 192.0.2.3\r\n"
    found = UpgradeReader(PATH).read(replaced(b"Host: gateway\r\n", b"Host: gateway\r\n" + lines + more))
    assert found is not None
    assert list(found[0].subprotocols) == ["a", "b", "c"]
    assert list(found[0].forwarded) == ["192.0.2.1", "192.0.2.2, 192.0.2.3"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"/device/v1", b"/device/v1?x=/device/v2"),
        (b"Connection: Upgrade", b"connection: keep-alive, UPGRADE"),
        (b"Upgrade: websocket", b"Upgrade: h2c, WebSocket"),
        (b"HTTP/1.1", b"HTTP/1.1\r\nX: \xff\xfe"),
    ],
)
def test_requests_that_are_accepted(before: bytes, after: bytes) -> None:
    assert UpgradeReader(PATH).read(replaced(before, after)) is not None


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (b"/device/v1", b"/device/v2", 404),
        (b"/device/v1", b"/", 404),
        (b"GET", b"POST", 405),
        (b"Upgrade: websocket", b"Upgrade: h2c", 400),
        (b"Upgrade: websocket\r\n", b"", 400),
        (b"Connection: Upgrade\r\n", b"", 400),
        (b"Version: 13", b"Version: 12", 426),
        (b"Version: 13", b"Version: x", 400),
        (b"Version: 13", b"Version: 13\r\nSec-WebSocket-Version: 12", 400),
        (KEY, b"", 400),
        (KEY, b"AAAA", 400),
        (KEY, b"!" * 24, 400),
        (b"GET", b"G T", 400),
    ],
)
def test_requests_that_are_refused(before: bytes, after: bytes, expected: int) -> None:
    assert status(replaced(before, after)) == expected


def test_another_version_is_told_the_one_that_is_spoken() -> None:
    with pytest.raises(UpgradeError) as error:
        UpgradeReader(PATH).read(replaced(b"Version: 13", b"Version: 99"))
    assert b"\r\nSec-WebSocket-Version: 13\r\n" in refused(error.value)


def test_a_head_has_an_upper_bound() -> None:
    reader = UpgradeReader(PATH)
    assert reader.read(UPGRADE[:-2] + b"X: " + bytes([97]) * (MAX_HEAD_BYTES - 200)) is None
    with pytest.raises(UpgradeError) as error:
        reader.read(b"a" * 400)
    assert error.value.status == 431


@given(parts=st.lists(st.binary(max_size=200) | st.sampled_from([UPGRADE[:50], UPGRADE[50:], b"\r\n"]), max_size=10))
def test_any_bytes_are_a_request_a_refusal_or_a_beginning(parts: list[bytes]) -> None:
    reader = UpgradeReader(PATH)
    with contextlib.suppress(UpgradeError):
        for part in parts:
            if reader.read(part) is not None:
                return
