"""Delivery decides what happens to each message on each device, and records every outcome.

push-commands ─▶ follower.py ─▶ starting.py ─▶ resolving.py (audiences, by targeting and the registry)
                                   │   waiting_pushes.py: the order in which pushes start
                                   ▼
                 event_writer.py (facts: log first, then state/)
                                   ▼
                 channels/ (the port), sockets (gateways), apns (Apple)
                                   ▼
                 outcome_recorder.py ─▶ deliveries
store.py, tenure.py: the state on disk, its standby, and the take-over     server.py: gateways' streams, queries
"""
