"""The kinds of installation that journeys run on."""

import pytest

KINDS = ["embedded", pytest.param("shards", marks=pytest.mark.kafka)]
"""`carillon up` in one process, and two processes a role on a real Kafka."""

SHARDS_IN_LONG = pytest.mark.parametrize(
    "carillon", ["embedded", pytest.param("shards", marks=[pytest.mark.kafka, pytest.mark.long])], indirect=True
)
"""Marks a journey that on several processes takes the way of another one: there it runs in `make test-long` alone."""
