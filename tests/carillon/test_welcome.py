"""The lines of `carillon up` about a phone: a link and its QR code, where a phone can reach the gateway."""

import io
import sys

import pytest
import segno

from carillon.welcome import phone_lines, say_phone_code

APPKEY = "1234567890"
ON_THE_NETWORK = "ws://192.168.1.7:8400/device/v1"
LINK = "carillon://connect?url=ws%3A%2F%2F192.168.1.7%3A8400%2Fdevice%2Fv1&appkey=1234567890"


class Terminal(io.StringIO):
    """Standard output of a terminal with an encoding."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return True


def _said(monkeypatch: pytest.MonkeyPatch, output: io.StringIO, gateway_url: str = ON_THE_NETWORK) -> str:
    monkeypatch.setattr(sys, "stdout", output)
    say_phone_code(gateway_url, APPKEY)
    return output.getvalue()


def _modules(drawn: str) -> list[list[int]]:
    """Return the modules of a drawn code, 1 where dark, without its border."""
    rows = []
    for line in drawn.splitlines():
        blocks = line.removeprefix("\x1b[97m\x1b[40m").removesuffix("\x1b[0m")
        rows += [[int(block in "▄ ") for block in blocks], [int(block in "▀ ") for block in blocks]]
    side = len(rows[0])
    return [row[3:-3] for row in rows[3 : side - 3]]


def test_the_link_is_printed_where_a_phone_reaches_the_gateway() -> None:
    assert phone_lines(ON_THE_NETWORK, APPKEY)[1] == f"   {LINK}"


def test_no_link_is_printed_that_would_lead_a_phone_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = phone_lines("ws://127.0.0.1:8400/device/v1", APPKEY)
    assert "CARILLON_HOST" in lines[1]
    assert LINK.partition("?")[0] not in "".join(lines)
    assert _said(monkeypatch, Terminal("utf-8"), "ws://127.0.0.1:8400/device/v1") == ""


def test_a_terminal_shows_the_link_as_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = _modules(_said(monkeypatch, Terminal("UTF-8")))
    assert modules == [list(row) for row in segno.make(LINK, error="l").matrix]


def test_nothing_is_drawn_where_it_could_not_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _said(monkeypatch, io.StringIO()) == ""
    assert _said(monkeypatch, Terminal("iso-8859-1")) == ""
