"""Drops the messages that wait for devices under aliases that the devices no longer have."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from services.delivery.channels.sockets.fanout import Fanout
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.starting import PushStarter
from services.delivery.state.audience_parts import DeviceAddress
from services.delivery.state.delivery_state import DeliveryState
from services.domain.token_resolver import TokenAndAliasResolver
from services.domain.topics import PUSH_COMMANDS
from services.log.port import Log, Partition
from services.process.clock import Clock
from services.replica.positions import AppliedPositions

_COMMANDS = Partition(PUSH_COMMANDS.name, 0)


class AliasChanges:
    """Checks whether the aliases under which messages wait for devices are still those of the devices.

    The registry is asked about the aliases, and only where messages wait. A message is dropped if it waited before the
    registry was asked: one that comes later may be for an alias that the device has got meanwhile. So a check is right
    at any time, however often it is repeated, and whoever asks for it.
    """

    def __init__(
        self,
        state: DeliveryState,
        starter: PushStarter,
        fanout: Fanout,
        recorder: OutcomeRecorder,
        resolver: TokenAndAliasResolver,
        log: Log,
        applied: AppliedPositions,
        clock: Clock,
    ) -> None:
        """`applied`: the commands that the state holds."""
        self._state = state
        self._starter = starter
        self._fanout = fanout
        self._recorder = recorder
        self._resolver = resolver
        self._log = log
        self._applied = applied
        self._clock = clock

    async def check(self, devices: Sequence[DeviceAddress]) -> list[list[int]]:
        """Drop the messages that wait for each device under a former alias; return their ids.

        It covers the pushes that the log holds when the call begins, and returns once the outcomes are in the log. Any
        CarillonError: the log or the registry does not answer; some of the messages may have been dropped.
        """
        end = (await self._log.ends([_COMMANDS]))[_COMMANDS]
        if end:
            await self._applied.wait([(_COMMANDS, end - 1)])
        for device in devices:
            await self._starter.until_started(device)
        waiting = {device: found for device in devices if (found := self._state.waiting_by_alias(device))}
        if not waiting:
            return [[] for _ in devices]
        holders = await self._holders(waiting)
        dropped = {
            device: [
                msgid
                for msgid, alias in self._state.waiting_by_alias(device).items()
                if msgid in found and device not in holders[device.appkey, alias]
            ]
            for device, found in waiting.items()
        }
        if any(dropped.values()):
            self._drop(dropped)
            await self._recorder.wait_recorded()
        return [dropped.get(device, []) for device in devices]

    async def _holders(
        self, waiting: Mapping[DeviceAddress, Mapping[int, str]]
    ) -> Mapping[tuple[str, str], set[DeviceAddress]]:
        """Return the devices that have each alias now, by appkey and alias."""
        aliases: dict[str, dict[str, None]] = defaultdict(dict)
        for device, found in waiting.items():
            aliases[device.appkey] |= dict.fromkeys(found.values())
        holders: dict[tuple[str, str], set[DeviceAddress]] = {}
        for appkey, names in aliases.items():
            for alias, answer in zip(names, await self._resolver.devices_of(appkey, list(names)), strict=True):
                holders[appkey, alias] = {DeviceAddress(appkey, d.partition, d.number) for d in answer.devices}
        return holders

    def _drop(self, dropped: Mapping[DeviceAddress, Sequence[int]]) -> None:
        now_ms = self._clock.now_ms()
        for device, msgids in dropped.items():
            for msgid in msgids:
                self._recorder.record_withdrawn(device, msgid, now_ms)
                self._fanout.acknowledge(device, msgid)
        self._fanout.refill()
