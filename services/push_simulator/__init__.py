"""What the simulators of push services share: HTTP/2 over TLS with scripted faults, and self-signed certificates.

server.py: a service that listens ─▶ connection.py: one client's connection     certificates.py
"""
