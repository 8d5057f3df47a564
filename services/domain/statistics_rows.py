"""The names of the numbers in rows of statistics, in the order in which they are listed."""

BROADCAST_COUNTS = ("target", "sent", "received", "shown", "clicked", "failed", "expired", "cancelled")
"""The fields of BroadcastRow that count devices."""

LOGIN_DAYS = (1, 2, 3, 4, 5, 6, 7, 30)
"""The periods for which users who logged in are counted: numbers of days up to and including a date."""
