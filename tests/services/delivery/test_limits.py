"""The circuit breaker."""

from services.delivery.limits import CircuitBreaker


def test_the_backoff_doubles_up_to_its_maximum() -> None:
    circuit = CircuitBreaker(1000, 5000)
    now_ms, backoffs = 1, []
    for _ in range(5):
        assert circuit.trip(now_ms)
        assert not circuit.trip(now_ms)
        backoffs.append(circuit.open_until_ms - now_ms)
        now_ms = circuit.open_until_ms
        assert not circuit.is_open(now_ms)
    assert backoffs == [1000, 2000, 4000, 5000, 5000]
    assert not circuit.is_closed
    circuit.close()
    assert circuit.is_closed
