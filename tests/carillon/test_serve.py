"""Addresses at which `carillon serve ROLE` takes calls: without TLS its own machine's alone, unless more is allowed."""

import pytest

from carillon.serve import listening_address, own_address
from services.domain.settings import Settings
from services.errors import CarillonError


@pytest.mark.parametrize("address", ["127.0.0.1:7401", "[::1]:7401", "localhost:7401", "unix:/run/registry.sock"])
def test_without_tls_a_role_listens_on_its_own_machine(address: str) -> None:
    assert own_address("registry", Settings(), {"CARILLON_REGISTRY_ADDR": address}) == address


@pytest.mark.parametrize("address", ["0.0.0.0:7401", "[::]:7401", "10.0.0.5:7401", "registry:7401"])
def test_without_tls_a_role_that_others_could_reach_does_not_start_unless_it_is_allowed(address: str) -> None:
    env = {"CARILLON_REGISTRY_ADDR": address}
    with pytest.raises(CarillonError, match=r"CARILLON_REGISTRY_ADDR is .*CARILLON_PLAINTEXT_CALLS=true"):
        own_address("registry", Settings(), env)
    assert own_address("registry", Settings(plaintext_calls=True), env) == address
    assert own_address("registry", Settings(tls_cert="c", tls_key="k", tls_authority="a"), env) == address


def test_a_role_may_listen_at_another_host_than_the_one_at_which_it_is_called() -> None:
    """In a container with several networks, its name may stand for one of its addresses alone."""
    env = {"CARILLON_REGISTRY_ADDR": "registry:7401"}
    everywhere = Settings(calls_host="0.0.0.0", tls_cert="c", tls_key="k", tls_authority="a")
    assert own_address("registry", everywhere, env) == "registry:7401"
    assert listening_address("registry:7401", everywhere) == "0.0.0.0:7401"
    with pytest.raises(CarillonError, match=r"CARILLON_CALLS_HOST is 0\.0\.0\.0:7401.*CARILLON_PLAINTEXT_CALLS=true"):
        own_address("registry", Settings(calls_host="0.0.0.0"), env)
