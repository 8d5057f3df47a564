"""Delivery decides what happens to each message on each device, and records every outcome.

push-commands ─▶ follower.py ─▶ starting.py ─▶ resolving.py (audiences, by targeting and the registry)
                                   │   waiting_pushes.py: the order in which pushes start
                                   ▼
                 event_writer.py (facts: log first, then state/)
                                   ▼
                 channels/ (the port), sockets (gateways), apns (Apple)
                                   │   due_hand_overs.py, handing_over.py, service_senders.py:
                                   │   what goes to channels when a device is away
                                   ▼
                 outcome_recorder.py ─▶ deliveries
store.py, tenure.py: the state on disk, its standby, and the take-over     server.py: gateways' streams, queries
"""
