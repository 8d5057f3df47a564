"""Which endpoints of Web Push subscriptions may be called: hostile URLs, the operator's hosts, addresses."""

import time
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain.push_endpoints import (
    MAX_ENDPOINT_LENGTH,
    AllowedHosts,
    EndpointRefusedError,
    checked_hosts,
    is_public,
    parse_endpoint,
    public_addresses,
)
from services.errors import InputError
from testkit.delivery.hostile_endpoints import PRIVATE_ADDRESSES, hostile_endpoints

KNOWN = [
    "https://fcm.googleapis.com/fcm/send/dGVzdA:APA91b_-",
    "https://fcm.googleapis.com:443/wp/x",
    "https://updates.push.services.mozilla.com/wpush/v2/gAAAAABk?x=1",
    "https://web.push.apple.com/QGuQyavXutnMH",
    "https://wns2-par02p.notify.windows.com/w/?token=BQYAAAD%2f%2b",
    "https://FCM.GoogleApis.com/fcm/send/x",
]


@pytest.mark.parametrize("url", KNOWN)
def test_known_push_services_are_called(url: str) -> None:
    endpoint = parse_endpoint(url)
    assert AllowedHosts().check(endpoint) is False
    assert url.lower().startswith(endpoint.origin) or ":443" in url
    assert url.endswith(endpoint.target)


@pytest.mark.parametrize("url", hostile_endpoints())
def test_no_hostile_endpoint_is_called(url: str) -> None:
    """Whatever the operator named, unless it is this very host and port, for which there are other tests."""
    for hosts in ([], ["push.example.org", "*.example.net", "push.example.org:8443"]):
        with pytest.raises(EndpointRefusedError) as refused:
            AllowedHosts(hosts).check(parse_endpoint(url))
        assert "SECRET" not in str(refused.value), "the path of an endpoint is a secret of its device"


def test_there_are_enough_hostile_endpoints() -> None:
    assert len(set(hostile_endpoints())) >= 200


@pytest.mark.parametrize(
    "start", ["https://a", "https://a.example/", "https://[::", "http" * 10, "https://a.example/?"]
)
@pytest.mark.parametrize("piece", ["a", ".", "-", "%", "[", ":", "a.", "/../", "@"])
def test_a_long_url_takes_no_time(start: str, piece: str) -> None:
    begun = time.process_time()
    for length in (MAX_ENDPOINT_LENGTH, 200_000):
        url = (start + piece * length)[:length] + "\n"
        with pytest.raises(EndpointRefusedError):
            parse_endpoint(url)
    assert time.process_time() - begun < 0.1


@pytest.mark.parametrize(
    ("named", "url", "private"),
    [
        ("push.example.org", "https://push.example.org/up", False),
        ("PUSH.example.org", "https://push.example.org/up", False),
        ("*.example.org", "https://a.push.example.org/up", False),
        ("*", "https://anything.example.com/up", False),
        ("ntfy:8080", "http://ntfy:8080/up", True),
        ("ntfy:8080", "https://ntfy:8080/up", True),
        ("127.0.0.1:24001", "http://127.0.0.1:24001/up", True),
        ("[::1]:24001", "http://[0:0::1]:24001/up", True),
        ("push.example.org:443", "https://push.example.org/up", True),
    ],
)
def test_hosts_that_the_operator_names(named: str, url: str, private: bool) -> None:
    endpoint = parse_endpoint(url)
    assert AllowedHosts(checked_hosts([named])).check(endpoint) is private
    with pytest.raises(EndpointRefusedError):
        AllowedHosts().check(endpoint)


@pytest.mark.parametrize(
    ("named", "url"),
    [
        ("push.example.org", "https://push.example.org:8443/up"),
        ("push.example.org", "http://push.example.org/up"),
        ("push.example.org", "https://a.push.example.org/up"),
        ("*.example.org", "https://example.org/up"),
        ("*.example.org", "https://badexample.org/up"),
        ("*", "https://192.0.2.1/up"),
        ("*", "https://[2606:4700::1]/up"),
        ("*", "https://anything.example.com:22/up"),
        ("*", "http://anything.example.com/up"),
        ("ntfy:8080", "http://ntfy:8081/up"),
        ("ntfy:8080", "http://ntfy/up"),
    ],
)
def test_hosts_that_the_operator_did_not_name(named: str, url: str) -> None:
    with pytest.raises(EndpointRefusedError):
        AllowedHosts(checked_hosts([named])).check(parse_endpoint(url))


@pytest.mark.parametrize(
    "host", ["", "a b", "https://a.example", "a.example/x", "*.org", "*.10.0.0.1", "*.a.example:443", "10.0.0.1", "a:0",
             "a:65536", "[::1]", "user@a.example", "0x7f.1:80", "**", "a" * 300]
)  # fmt: skip
def test_texts_that_are_no_host(host: str) -> None:
    with pytest.raises(InputError, match="webpush_hosts"):
        checked_hosts(["push.example.org", host])


def test_hosts_are_kept_once_and_not_without_end() -> None:
    assert checked_hosts([" Push.example.org", "push.example.org", "[::01]:80"]) == ["push.example.org", "[::1]:80"]
    with pytest.raises(InputError, match="at most 32"):
        checked_hosts(["a.example"] * 33)


@pytest.mark.parametrize("address", PRIVATE_ADDRESSES)
def test_addresses_that_are_not_of_the_internet(address: str) -> None:
    assert not is_public(address)
    assert public_addresses([address, "142.250.1.1", address]) == ["142.250.1.1"]


@pytest.mark.parametrize(
    "address",
    ["142.250.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2a00:1450:4001:80b::200a", "2606:4700::6810:84e5",
     "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1"],
)  # fmt: skip
def test_addresses_of_the_internet(address: str) -> None:
    assert is_public(address)


@given(st.ip_addresses())
def test_no_address_is_public_that_the_standard_library_calls_private(address: IPv4Address | IPv6Address) -> None:
    carries = isinstance(address, IPv6Address) and (address.ipv4_mapped or address.sixtofour)
    if is_public(str(address)) and not carries:
        assert not address.is_private
        assert not address.is_loopback
        assert not address.is_link_local
        assert not address.is_multicast
