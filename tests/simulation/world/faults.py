"""The faults of a world of an installation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.simulation.kernel.faults import Fault, Faults
from tests.simulation.kernel.hosts import RoleHost
from tests.simulation.kernel.installation import Installation
from tests.simulation.model.acknowledgements import GatewayFrame, ReceivedAcknowledgement
from tests.simulation.world.analytics.store import ModelStore
from tests.simulation.world.apple import SimulatedApple
from tests.simulation.world.browsers import SimulatedPushService
from tests.simulation.world.clients import SimulatedGateways
from tests.simulation.world.operator import Operator
from tests.simulation.world.plan import CLIENT_FAULTS

_ANNOUNCED_MS = 2_000
_TAKES_OVER_MS = 10_000
"""How long at most until an acknowledgement is in the log, and until a new owner knows all connections."""


class WorldFaults(Faults):
    """Injects the faults of hosts, log and network, of the devices' connections, and an operator's actions."""

    def __init__(
        self,
        installation: Installation,
        hosts: Sequence[RoleHost],
        gateways: SimulatedGateways,
        operator: Operator,
        reshard: Callable[[str, int], Sequence[RoleHost]],
        apple: SimulatedApple | None,
        push_service: SimulatedPushService | None,
        store: ModelStore | None,
    ) -> None:
        """`reshard` stops the installation, starts it with another number of instances of a role and returns its
        hosts."""
        super().__init__(installation, hosts)
        self._gateways = gateways
        self._operator = operator
        self._reshard = reshard
        self._apple = apple
        self._push_service = push_service
        self._store = store

    def reset_connections(self, fault: Fault) -> None:
        """Reset all connections of devices; both sides notice it."""
        self._gateways.reset()

    def lose_connections(self, fault: Fault) -> None:
        """Take all devices off the network for a moment; the gateways do not notice it."""
        self._gateways.lose()

    def stop_reading(self, fault: Fault) -> None:
        """Let the devices read nothing over their present connections for `amount` seconds."""
        self._later(fault.amount, self._gateways.stop_reading())

    def reshard(self, fault: Fault) -> None:
        """Kill all processes, and start them with `amount` instances of the role `target`."""
        self._hosts |= {host.name: host for host in self._reshard(fault.target, int(fault.amount))}

    def heal(self) -> None:
        super().heal()
        if self._apple is not None:
            self._apple.is_away, self._apple.failing_rate = False, 0.0
        if self._push_service is not None:
            self._push_service.trouble = ""
        if self._store is not None:
            self._store.is_away, self._store.fault_rate = False, 0.0

    def apple_away(self, fault: Fault) -> None:
        """Make Apple's service unreachable for `amount` seconds; neither side of its connections notices it."""
        if (apple := self._apple) is not None:
            apple.is_away = True
            apple.lose_connections()
            self._later(fault.amount, lambda: setattr(apple, "is_away", False))

    def apple_closes(self, fault: Fault) -> None:
        """Make Apple's service close all connections."""
        if self._apple is not None:
            self._apple.close_connections()

    def apple_loses(self, fault: Fault) -> None:
        """Lose all data on the present connections to Apple's service."""
        if self._apple is not None:
            self._apple.lose_connections()

    def apple_fails(self, fault: Fault) -> None:
        """Make Apple's service answer a third of the pushes with server errors for `amount` seconds."""
        if (apple := self._apple) is not None:
            apple.failing_rate = 0.3
            self._later(fault.amount, lambda: setattr(apple, "failing_rate", 0.0))

    def push_service_trouble(self, fault: Fault) -> None:
        """Let the push service of browsers have the trouble `other` for `amount` seconds."""
        if (push_service := self._push_service) is not None:
            push_service.trouble = fault.other
            self._later(fault.amount, lambda: setattr(push_service, "trouble", ""))

    def pause_app(self, fault: Fault) -> None:
        """Pause the app for `amount` seconds."""
        self._operator.start(self._operator.pause(fault.amount))

    def rotate_secret(self, fault: Fault) -> None:
        """Give the app a new secret key."""
        self._operator.start(self._operator.rotate())

    def revoke_key(self, fault: Fault) -> None:
        """Register a device, and revoke its key."""
        self._operator.start(self._operator.revoke())

    def store_away(self, fault: Fault) -> None:
        """Make the analytics store unavailable for `amount` seconds."""
        if (store := self._store) is not None:
            store.is_away = True
            self._later(fault.amount, lambda: setattr(store, "is_away", False))

    def store_fails(self, fault: Fault) -> None:
        """Make a third of the requests to the analytics store fail, half of them after they were carried out."""
        if (store := self._store) is not None:
            store.fault_rate = 0.3
            self._later(fault.amount, lambda: setattr(store, "fault_rate", 0.0))


@dataclass(frozen=True)
class MustKnow:
    """Decides whether delivery must know an acknowledgement when it sends a message over a later connection.

    A gateway reports the acknowledgements that it has received before it announces a later connection of its own.
    Another gateway may announce a connection while the former one is not reached, or has just announced its own; a
    killed gateway reports nothing. Without such a fault delivery waits for the former gateway. But a new owner of
    delivery does not know the former gateway of a device that moves during the takeover, so it cannot wait for it.
    `calm_ms`: the intervals in which nothing was broken. `changes_ms`: when owners of delivery changed.
    """

    calm_ms: Sequence[tuple[int, int]]
    faults: Sequence[Fault]
    changes_ms: Sequence[int]

    def __call__(self, received: ReceivedAcknowledgement, sent: GatewayFrame) -> bool:
        if received.process == sent.process:
            return True
        changes = any(abs(received.time_ms - each) < _TAKES_OVER_MS and each < sent.time_ms for each in self.changes_ms)
        reaches = all(fault.kind in CLIENT_FAULTS for fault in self.faults)
        is_calm = reaches or any(begun <= received.time_ms and sent.time_ms < ended for begun, ended in self.calm_ms)
        return is_calm and not changes and received.begun_ms + _ANNOUNCED_MS < received.time_ms
