"""A simulator of Firebase Cloud Messaging, strict as Google documents it. An installation uses it by default.

accounts.py: service accounts, and the access tokens they are granted     requests.py: what Google refuses
server.py: the service, over HTTP/2 and TLS
"""
