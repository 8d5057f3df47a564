"""Which logged errors are findings of a world of an installation."""

from tests.simulation.kernel.clock import START_MS
from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.world import LoggedError
from tests.simulation.world.errors import unexpected


def test_faults_explain_refused_requests_only_until_they_are_over() -> None:
    refused = [LoggedError("edge-0", "a request failed", "{'path': '/v2/push'} None", time_s) for time_s in (5.0, 15.0)]
    calm_ms, faults = START_MS + 10_000, [Fault(1, "kill", "edge-0")]
    assert unexpected(refused, faults, calm_ms) == refused[1:]
    assert unexpected(refused, faults, calm_ms, is_slow=True) == []
    assert unexpected(refused, [], calm_ms) == refused
