"""The addresses of the console, the gateways and the v2 interface that follow from the settings."""

import pytest

from console.settings import ConsoleSettings


@pytest.mark.parametrize(
    ("host", "shown"), [("::", "[::1]"), ("0.0.0.0", "127.0.0.1"), ("push.example.org", "push.example.org")]
)
def test_the_default_addresses_are_on_the_host_of_this_process(host: str, shown: str) -> None:
    settings = ConsoleSettings(host=host)
    assert settings.public_url == f"http://{shown}:8080"
    assert settings.gateway_url == f"ws://{shown}:8400/device/v1"
    assert settings.v2_url == f"http://{shown}:8300"


def test_the_default_addresses_beside_a_console_with_an_address_are_on_its_host() -> None:
    settings = ConsoleSettings(console_url="https://[2001:db8::5]/", gateway_tls_cert="tls.crt")
    assert settings.public_url == "https://[2001:db8::5]"
    assert settings.gateway_url == "wss://[2001:db8::5]:8400/device/v1"
    assert settings.v2_url == "http://[2001:db8::5]:8300"
