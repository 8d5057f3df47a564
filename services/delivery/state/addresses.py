"""How delivery names devices: by app, partition and device number."""

from typing import NamedTuple

AppPartition = tuple[str, int]
"""An appkey and a device partition."""


class DeviceAddress(NamedTuple):
    """One device of an app; `number` is its device number in the partition."""

    appkey: str
    partition: int
    number: int

    @property
    def app_partition(self) -> AppPartition:
        return self.appkey, self.partition
