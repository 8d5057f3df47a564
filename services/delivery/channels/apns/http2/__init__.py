"""A client's side of HTTP/2 (RFC 9113) without input or output of its own; it knows nothing of Apple."""
