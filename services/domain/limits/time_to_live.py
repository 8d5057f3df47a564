"""The bounds of the time to live of pushes in the legacy interfaces, and of an app's default for pushes without one."""

MIN_PERIOD_S = 60
MAX_PERIOD_S = 604_800
"""Seconds: 7 days. The v2 interface has a bound of its own, which is a setting of the edge."""
