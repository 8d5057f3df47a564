"""Result codes that both generations of Huawei's Push Kit share, HMS (hms/) and HarmonyOS (harmony/)."""

ACCEPTED = "80000000"
SOME_REFUSED = "80100000"
ALL_INVALID = "80300007"

MAX_TOKENS = 1000
"""Huawei's limit of a request."""
