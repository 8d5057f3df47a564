"""The client's address of a request: trusted proxies, and the entries of X-Forwarded-For."""

import pytest

from services.domain.settings import Settings, SettingsError, load
from services.net.http.client_address import ClientAddresses, Networks, read_address

PROXIES = ClientAddresses(Networks.parse(["10.0.0.0/8", "2001:db8:aa::/48"]))


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.7", (), "192.0.2.7"),
        ("192.0.2.7", ("203.0.113.9",), "192.0.2.7"),
        ("10.0.0.1", (), "10.0.0.1"),
        ("10.0.0.1", ("",), "10.0.0.1"),
        ("10.0.0.1", ("203.0.113.9",), "203.0.113.9"),
        ("10.0.0.1", ("198.51.100.1, 203.0.113.9",), "203.0.113.9"),
        ("10.0.0.1", ("198.51.100.1", "203.0.113.9"), "203.0.113.9"),
        ("10.0.0.1", ("198.51.100.1, 203.0.113.9 ,10.2.3.4",), "203.0.113.9"),
        ("10.0.0.1", ("10.9.9.9, 10.2.3.4",), "10.9.9.9"),
        ("10.0.0.1", ("203.0.113.9:4711",), "203.0.113.9"),
        ("10.0.0.1", ("[2001:db8::7]:4711",), "2001:db8::7"),
        ("10.0.0.1", ("[2001:DB8:0:0::7]",), "2001:db8::7"),
        ("10.0.0.1", ("2001:db8::7",), "2001:db8::7"),
        ("10.0.0.1", ("fe80::1%eth0",), "fe80::1"),
        ("10.0.0.1", ("::ffff:203.0.113.9",), "203.0.113.9"),
        ("2001:db8:aa::1", ("203.0.113.9",), "203.0.113.9"),
        ("::ffff:10.0.0.1", ("203.0.113.9",), "203.0.113.9"),
        ("::ffff:192.0.2.7", ("203.0.113.9",), "192.0.2.7"),
        ("fe80::1%2", (), "fe80::1"),
        ("10.0.0.1", ("unknown",), "10.0.0.1"),
        ("10.0.0.1", ("203.0.113.9, unknown, 10.2.3.4",), "10.2.3.4"),
        ("10.0.0.1", ("203.0.113.9,",), "10.0.0.1"),
        ("10.0.0.1", ("203.0.113.9 198.51.100.1",), "10.0.0.1"),
        ("10.0.0.1", ("10.0.0.2:",), "10.0.0.1"),
        ("10.0.0.1", ("127.1",), "10.0.0.1"),
        ("10.0.0.1", ("203.0.113.9:99999",), "10.0.0.1"),
        ("10.0.0.1", ("[2001:db8::7",), "10.0.0.1"),
        ("10.0.0.1", ("[2001:db8::7]4711",), "10.0.0.1"),
        ("10.0.0.1", ("<script>\r\n",), "10.0.0.1"),
        ("10.0.0.1", ("２.2.2.2",), "10.0.0.1"),
        ("", (), ""),
    ],
)
def test_the_client_is_the_last_address_that_no_proxy_has(peer: str, forwarded: tuple[str, ...], client: str) -> None:
    assert PROXIES.of(peer, forwarded) == client


def test_by_default_no_peer_is_believed() -> None:
    addresses = load(Settings, {}).client_addresses()
    for peer in ("127.0.0.1", "::1", "10.0.0.1"):
        scope = {"client": (peer, 1), "headers": [(b"x-forwarded-for", b"203.0.113.9")]}
        assert addresses.of_scope(scope) == peer
        assert not addresses.is_proxy(peer)
    assert addresses.of_scope({"client": None, "headers": []}) == ""


def test_every_header_of_a_request_is_read_in_order() -> None:
    addresses = load(Settings, {"CARILLON_TRUSTED_PROXIES": "10.0.0.0/8, ::1"}).client_addresses()
    headers = [(b"host", b"x"), (b"x-forwarded-for", b"198.51.100.1"), (b"x-forwarded-for", b"203.0.113.9, 10.1.1.1")]
    assert addresses.of_scope({"client": ("::1", 1), "headers": headers}) == "203.0.113.9"
    assert addresses.is_proxy("::ffff:10.0.0.1")


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("proxy.example", "'proxy.example' is no network"),
        ("10.0.0.1/8", "'10.0.0.1/8' is no network: 10.0.0.1/8 has host bits set; write 192.0.2.0/24"),
        ("10.0.0.0/8,,::1", "'' is no network"),
        ("10.0.0.0/33", "'10.0.0.0/33' is no network"),
    ],
)
def test_a_wrong_setting_stops_the_start(setting: str, problem: str) -> None:
    with pytest.raises(SettingsError) as stopped:
        load(Settings, {"CARILLON_TRUSTED_PROXIES": setting})
    assert str(stopped.value).startswith(f"CARILLON_TRUSTED_PROXIES is {setting!r}: {problem}")


def test_networks_of_mapped_addresses_are_those_of_ipv4() -> None:
    networks = Networks.parse(["::ffff:192.0.2.0/120", "2001:db8::/32", "203.0.113.9"])
    assert networks.texts() == ["192.0.2.0/24", "2001:db8::/32", "203.0.113.9/32"]
    inside = ["192.0.2.200", "::ffff:192.0.2.1", "2001:db8::ffff", "203.0.113.9"]
    outside = ["192.0.3.1", "::ffff:192.0.3.1", "2001:db9::1", "203.0.113.10", "::203.0.113.9"]
    assert [read_address(text) in networks for text in (*inside, *outside)] == [True] * 4 + [False] * 5
