"""The state of delivery, folded from push-commands, pushes and deliveries. It does not decide and does not wait.

delivery_state.py ─▶ pushes.py (life cycle of a push)  audience_parts.py (pending devices)  devices.py (backlogs)
                     sent_messages.py (which reports are accepted)           serialization.py (snapshots, digests)
"""
