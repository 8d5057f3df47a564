"""Resolves the audiences of one app's pushes."""

from services.delivery.starting.instance_resolver import Asked, InstanceResolver, ResolutionListener
from services.delivery.starting.waiting_push import WaitingPush
from services.domain.audiences.bitmap_resolver import AudienceBitmapResolver
from services.runtime.process.clock import Clock


class AppResolver:
    """Asks all instances of targeting; the partitions of one that does not answer delay no others."""

    def __init__(self, audiences: AudienceBitmapResolver, clock: Clock, listener: ResolutionListener) -> None:
        asked: Asked = {}
        self._instances = [
            InstanceResolver(audiences, shard, asked, clock, listener) for shard in range(audiences.shards)
        ]

    def add(self, waiting: WaitingPush) -> None:
        """Resolve the push's audience as soon as it is its turn."""
        for instance in self._instances:
            if not waiting.is_over:
                instance.add(waiting)

    def discard(self, waiting: WaitingPush) -> None:
        """Give up a push that is over; the calls that are being made for it are cancelled."""
        for instance in self._instances:
            instance.discard(waiting)

    def stop(self) -> None:
        """Give up all pushes."""
        for instance in self._instances:
            instance.stop()
