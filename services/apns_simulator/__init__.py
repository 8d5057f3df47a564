"""A simulator of Apple's push service as documented, over HTTP/2 and TLS; `carillon up` uses it, tests script it."""
