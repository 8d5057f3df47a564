"""What the audience of a push is made of, without the entries of its list."""

from typing import assert_never

from protos.analytics.v1.details_pb2 import AudienceSummary, ListedAliases
from protos.push.v1.push_pb2 import Audience

_NUMBER_BYTES = 4


def audience_summary(audience: Audience) -> AudienceSummary:
    """Return what the audience is made of: its filter, or the number of entries in its list."""
    match audience.WhichOneof("audience"):
        case "everyone":
            return AudienceSummary(everyone=audience.everyone)
        case "filter":
            return AudienceSummary(filter=audience.filter)
        case "devices":
            return AudienceSummary(devices=len(audience.devices.numbers) // _NUMBER_BYTES)
        case "tokens":
            return AudienceSummary(tokens=len(audience.tokens.tokens))
        case "aliases":
            listed = audience.aliases
            return AudienceSummary(aliases=ListedAliases(count=len(listed.aliases), all_devices=listed.all_devices))
        case None:
            return AudienceSummary()
        case never:
            assert_never(never)
