"""The networks by which log-ins are told apart."""

from ipaddress import IPv4Address

from services.runtime.http.client_address import read_address


def site_of(address: str) -> str:
    """Return the network by which attempts for a name are counted, and which a log-in makes a known one.

    That is the /24 of an IPv4 address, in which a person's address changes and which is cheap to rent as a whole, and
    the /48 of an IPv6 address, which is what one customer gets: all its addresses count together.
    """
    found = read_address(address)
    if found is None:
        return address
    return f"{found.packed[:3].hex()}/24" if isinstance(found, IPv4Address) else f"{found.packed[:6].hex()}/48"
