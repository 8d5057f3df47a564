"""The host of URLs at which a listener of this machine is reached."""

import pytest

from carillon.welcome import InterfaceAddress


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8300/v2/push"),
        ("push.example.org", "http://push.example.org:8300/v2/push"),
        ("0.0.0.0", "http://127.0.0.1:8300/v2/push"),
        ("::", "http://[::1]:8300/v2/push"),
        ("2001:db8::5", "http://[2001:db8::5]:8300/v2/push"),
    ],
)
def test_a_url_leads_to_the_listener(host: str, url: str) -> None:
    assert InterfaceAddress("app servers, v2", "http", host, 8300, "/v2/push").url == url
