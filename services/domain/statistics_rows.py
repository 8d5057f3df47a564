"""The names of the numbers in rows of statistics, in the order in which they are listed."""

BROADCAST_COUNTS = ("target", "sent", "received", "shown", "clicked", "failed", "expired", "cancelled")
"""The fields of BroadcastRow that count devices."""

CHANNEL_COUNTS = ("sent", "received", "shown", "clicked")
"""The fields of ChannelCounts that count devices, which BroadcastRow has too."""

OWN, APPLE = "own", "apns"
"""The channels without addresses: Carillon's own connections, and Apple's push service."""

OWN_CHANNELS = {"android": OWN, "ios": APPLE}
"""The channel, by the app's platform, that a device's push leaves by if it is not handed over to another one."""

LOGIN_DAYS = (1, 2, 3, 4, 5, 6, 7, 30)
"""The periods for which users who logged in are counted: numbers of days up to and including a date."""
