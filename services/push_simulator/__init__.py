"""What the simulators of push services share: HTTP/2 or HTTP/1.1 over TLS with scripted faults, certificates, tokens.

server.py: a service that listens ─▶ connection.py: one client's connection, both over HTTP/2     certificates.py
http1_service.py: a service that listens and answers as scripted ─▶ http1.py: one client's connection
granted_tokens.py: access tokens that a simulator has granted     forms.py: bodies that are forms
"""
