"""How far the roles of this process have applied the topic `erasures`, which their statuses announce."""

from services.domain.topics import ERASURES_PARTITION
from services.process.metrics import ERASURES_APPLIED
from services.replica.positions import AppliedPositions


def export_applied_erasures(role: str, part: str, applied: AppliedPositions) -> None:
    """Export how many erasures a part of a role has applied, where these positions say so."""

    def until() -> float:
        return applied.next_offsets([ERASURES_PARTITION]).get(ERASURES_PARTITION, 0)

    ERASURES_APPLIED.labels(role, part).set_function(until)
