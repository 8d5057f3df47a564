"""The link by which a phone connects, as a device of an app."""

from urllib.parse import parse_qs, urlsplit

import pytest

from services.net.http.device_link import device_link, is_of_this_machine


def test_the_link_has_the_gateways_url_in_percent_encoding() -> None:
    link = device_link("ws://192.168.1.7:8400/device/v1", "1234567890")
    assert link == "carillon://connect?url=ws%3A%2F%2F192.168.1.7%3A8400%2Fdevice%2Fv1&appkey=1234567890"


def test_a_url_with_signs_of_its_own_comes_through_whole() -> None:
    url = "wss://[2001:db8::5]:8400/device/v1?a=1&appkey=2#%25"
    fields = parse_qs(urlsplit(device_link(url, "1234567890")).query, strict_parsing=True)
    assert fields == {"url": [url], "appkey": ["1234567890"]}


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1.2.3", "[::1]", "0.0.0.0", "[::]", "localhost", "LOCALHOST.", "a.localhost"]
)
def test_a_phone_does_not_reach_what_each_machine_calls_itself(host: str) -> None:
    assert is_of_this_machine(f"ws://{host}:8400/device/v1")


@pytest.mark.parametrize(
    "host", ["192.168.1.7", "[2001:db8::5]", "push.example.org", "laptop.local", "localhost.example.org"]
)
def test_a_phone_may_reach_any_other_host(host: str) -> None:
    assert not is_of_this_machine(f"ws://{host}:8400/device/v1")
