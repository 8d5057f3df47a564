"""Planted bugs of analytics' ingestion: rows that are lost or inserted twice when its process is killed."""

from collections.abc import Sequence

from tests.simulation.planted.bug import PlantedBug, planted_bug

_WRITE = "analytics.ingestion.batch_writer:BatchWriter.write"

ANALYTICS_BUGS: Sequence[PlantedBug] = (
    planted_bug(
        "batch-not-noted",
        "a batch is inserted that the offsets file does not have, so that it is read in other ranges after a kill",
        "installation",
        (
            _WRITE,
            "await retry_until_available(_NOT_NOTED, lambda: self._on_thread(self._offsets.begin, batch))",
            "pass",
        ),
    ),
    planted_bug(
        "offsets-before-rows",
        "the offsets file says that a batch is in the store before it is",
        "installation",
        (
            _WRITE,
            "await self._insert_all(batch, translated.tables)",
            "await self._end(batch, translated); await self._insert_all(batch, translated.tables)",
        ),
    ),
)
"""The bugs that only worlds with analytics can have."""
