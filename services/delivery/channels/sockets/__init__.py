"""Messages over the devices' own connections: presence, backlogs, streams to gateways, reports.

presence.py (who is connected where) ─▶ fanout.py ─▶ gateway_stream.py ─▶ a gateway
paced_sender.py: pushes with a speed     reports.py ◀─ acknowledgements
"""
