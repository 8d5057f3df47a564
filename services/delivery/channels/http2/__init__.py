"""A client's side of HTTP/2 (RFC 9113) for push services; it knows none of them.

sender.py: a queue and its connections ─▶ service_connection.py: one over TLS ─▶ connection.py, without input or output
frames.py, headers.py: the bytes
"""
