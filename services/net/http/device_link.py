"""The link that a phone opens, or scans as a QR code, so that an app there connects as a device.

`carillon://connect?url=URL&appkey=APPKEY`, with the URL percent-encoded: that of the gateway's WebSocket for Android,
and the HTTP address at which iPhones register.
"""

from urllib.parse import urlencode, urlsplit

from services.net.http.client_address import read_address


def device_link(url: str, appkey: str) -> str:
    """Return the link. `url`: where phones reach the service, such as wss://push.example.org/device/v1."""
    return "carillon://connect?" + urlencode({"url": url, "appkey": appkey})


def is_of_this_machine(url: str) -> bool:
    """Return whether the host of a URL leads each machine to itself: a phone that opens it reaches nothing."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = read_address(host)
    return address is not None and (address.is_loopback or address.is_unspecified)
