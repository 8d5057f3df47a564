"""The published documents: OpenAPI of each HTTP interface, AsyncAPI of the device protocol.

They are generated from the types that read requests and make answers: `msgspec.Meta` has the limits, descriptions and
examples of a field, `Shown` the type of a field that is decoded later.
`python -m carillon.openapi DIRECTORY` writes the documents into files.
"""
