"""A simulator of a push service for browsers (RFC 8030), strict as Mozilla's and Apple's; tests script its answers.

subscriptions.py: the browsers' side: keys, decryption     requests.py: what the service refuses
server.py: the service, over HTTP/1.1
"""
