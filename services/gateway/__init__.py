"""The gateway holds the devices' WebSocket connections and sends delivery's pushes over them.

acceptor.py ─▶ connection.py ─hello─▶ handshake.py ─welcome─▶ session.py ─▶ device_requests.py (to the registry)
delivery ─stream─▶ uplink.py ─▶ push_sender.py ─▶ push_frames.py ─▶ connection.py
left_devices.py: whom it welcomes without the registry
session_writer.py: facts about sessions   sweeper.py: connections that must end   listener.py: start and drain
rules.py: all decisions, pure             websocket/: RFC 6455
"""
