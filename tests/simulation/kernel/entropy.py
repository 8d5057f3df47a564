"""Seeded entropy: what production code draws from the system and from Python's global generator."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from unittest.mock import patch


@contextmanager
def seeded_entropy(source: Random) -> Iterator[None]:
    """Let `os.urandom`, `secrets`, `uuid` and `random` draw from the source inside the `with`."""
    state = random.getstate()
    random.seed(source.getrandbits(64))
    with patch.object(os, "urandom", source.randbytes), patch.object(random, "_urandom", source.randbytes):
        try:
            yield
        finally:
            random.setstate(state)
