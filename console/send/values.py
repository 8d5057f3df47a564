"""The values that an audience can name, such as the string tags of an app, with the devices that have each."""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from protos.targeting.v1.targeting_pb2 import CountValuesRequest, CountValuesResponse, ValueCount, ValueField
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceStub
from services.errors import UnavailableError
from services.replica.peers import Peers

FIELDS: Mapping[str, ValueField.ValueType] = {
    "tag": ValueField.VALUE_FIELD_TAG,
    "stag": ValueField.VALUE_FIELD_STAG,
    "region": ValueField.VALUE_FIELD_REGION,
    "carrier": ValueField.VALUE_FIELD_CARRIER,
    "channel": ValueField.VALUE_FIELD_CHANNEL,
    "brand": ValueField.VALUE_FIELD_BRAND,
    "model": ValueField.VALUE_FIELD_MODEL,
    "os_version": ValueField.VALUE_FIELD_OS_VERSION,
    "app_version": ValueField.VALUE_FIELD_APP_VERSION,
}
"""The fields by their names in calls and commands."""

COUNT_S = 5.0
"""Deadline of the question to targeting, seconds. It answers within some 20 ms, the first time after a start later."""


class Value(NamedTuple):
    """A value of a field; `brand` is that of a model, empty for other fields."""

    text: str
    brand: str = ""


class CountedValue(NamedTuple):
    """A value, and how many devices have it."""

    value: Value
    devices: int


class ValueList(NamedTuple):
    """The values that most of `devices` devices have, those that more have first. `has_more`: there are others."""

    values: Sequence[CountedValue]
    has_more: bool
    devices: int


class AudienceValues:
    """Asks targeting, each shard for the devices of its partitions."""

    def __init__(self, peers: Peers, partitions: int) -> None:
        self._targeting = [TargetingServiceStub(channel) for channel in peers.all("targeting")]
        self._partitions = set(range(partitions))

    async def listed(self, appkeys: Sequence[str], field: str, words: str, limit: int) -> ValueList:
        """Return the values of devices of these apps with all of the words, at most `limit`.

        Raises the error of an instance that does not answer. Where several answer, the numbers are exact, and values
        that only few more devices have than others may be missing.
        """
        asked = CountValuesRequest(field=FIELDS[field], words=words, limit=limit)
        answers = await self._ask(appkeys, asked)
        named = {Value(each.value, each.brand) for answer in answers for each in answer.values}
        if len(answers) > 1 and any(answer.has_more for answer in answers):
            counted = await self.counted(appkeys, field, named)
        else:
            counted = _sum(answers)
        devices = sum(answer.devices for answer in answers)
        return ValueList(counted[:limit], len(counted) > limit or any(each.has_more for each in answers), devices)

    async def counted(self, appkeys: Sequence[str], field: str, values: Collection[Value]) -> list[CountedValue]:
        """Return how many devices have each of these values, those that more have first; without those of none."""
        if not values:
            return []
        named = [ValueCount(value=value.text, brand=value.brand) for value in values]
        return _sum(await self._ask(appkeys, CountValuesRequest(field=FIELDS[field], values=named)))

    async def _ask(self, appkeys: Sequence[str], asked: CountValuesRequest) -> list[CountValuesResponse]:
        """Return the answers of all instances for all apps. UnavailableError: a partition is in none of them."""
        requests = []
        for appkey in appkeys:
            request = CountValuesRequest(appkey=appkey)
            request.MergeFrom(asked)
            requests.append(request)
        answers = await asyncio.gather(
            *(stub.CountValues(request, timeout=COUNT_S) for request in requests for stub in self._targeting)
        )
        if missing := self._partitions.difference(*(answer.partitions for answer in answers)):
            raise UnavailableError(f"no instance of targeting has counted in partitions {sorted(missing)}")
        return answers


def _sum(answers: Sequence[CountValuesResponse]) -> list[CountedValue]:
    totals = Counter[Value]()
    for answer in answers:
        for each in answer.values:
            totals[Value(each.value, each.brand)] += each.devices
    return sorted((CountedValue(*entry) for entry in totals.items()), key=lambda each: (-each.devices, each.value))
