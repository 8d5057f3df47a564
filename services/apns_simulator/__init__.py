"""Behaves as Apple's push service is documented to, over HTTP/2 and TLS. `carillon up` uses it, and tests script it."""
