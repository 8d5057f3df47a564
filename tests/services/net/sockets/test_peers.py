"""Counts of sockets by the network of their peer."""

from services.net.http.client_address import ClientAddresses, Networks
from services.net.sockets import PeerCounts, network, shared_addresses

SETTING = "CARILLON_TEST"


def is_never_shared(_: str) -> bool:
    return False


def test_each_network_has_its_share_and_gets_it_back() -> None:
    counts = PeerCounts(2, is_never_shared, SETTING)
    taken = [counts.take("192.0.2.1") for _ in range(3)]
    assert taken == ["192.0.2.1", "192.0.2.1", None]
    assert counts.take("192.0.2.2") == "192.0.2.2"
    counts.release("192.0.2.1")
    assert counts.take("192.0.2.1") is not None
    for peer in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
        counts.release(peer)
    assert len(counts) == 0


def test_a_host_shares_its_64_bits_of_ipv6_and_a_mapped_address_is_one_of_ipv4() -> None:
    counts = PeerCounts(1, is_never_shared, SETTING)
    assert counts.take("2001:db8::1") is not None
    assert counts.take("2001:db8::2") is None
    assert counts.take("2001:db8:0:1::1") is not None
    assert counts.take("::ffff:192.0.2.1") is not None
    assert counts.take("192.0.2.1") is None
    assert counts.take("::ffff:192.0.2.2") is not None


def test_proxies_this_host_and_unix_sockets_are_not_counted() -> None:
    proxies = ClientAddresses(Networks.parse(["10.0.0.0/8"]))
    counts = PeerCounts(1, shared_addresses(proxies), SETTING)
    for address in ("127.0.0.1", "127.0.0.9", "::1", "::ffff:127.0.0.1", "10.9.8.7", ""):
        for _ in range(3):
            peer = counts.take(address)
            assert peer == ""
            counts.release(peer)
    assert len(counts) == 0


def test_a_network_is_an_ipv4_address_or_an_ipv6_prefix_of_64_bits() -> None:
    assert network("192.0.2.7") == "192.0.2.7"
    assert network("2001:db8::1") == network("2001:db8::ffff:1") != network("2001:db8:0:1::1")
    assert network("fe80::1%eth0") == network("fe80::2")
    assert network("::ffff:192.0.2.7") == "192.0.2.7"
