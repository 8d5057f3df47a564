"""Settings of the edge."""

from typing import Annotated

import msgspec

from services.domain.master_key import KeyPurpose
from services.domain.settings import Port, Positive, Settings

ROLE_NAME = "edge"
KEYS = frozenset({KeyPurpose.DEVICES, KeyPurpose.SECRETS})


class EdgeSettings(Settings, frozen=True, kw_only=True):
    """`timed_min_lead_s`: how far ahead timed messages of the legacy interfaces lie at least, in seconds.

    `v2_max_period_s`: longest time to live that a push of the v2 interface may ask for, in seconds.
    `edge_unverified_mib`: bytes of the request bodies whose sign is not verified yet, in MiB per process.
    """

    android_port: Port = 8001
    ios_port: Port = 8200
    v2_port: Port = 8300
    edge_workers: Positive = 1
    edge_unverified_mib: Positive = 64
    v2_max_period_s: Annotated[int, msgspec.Meta(ge=60, le=31_536_000)] = 2_592_000
    timed_min_lead_s: Annotated[int, msgspec.Meta(ge=0, le=259_200)] = 600

    @property
    def interface_ports(self) -> tuple[int, int, int]:
        return self.android_port, self.ios_port, self.v2_port
