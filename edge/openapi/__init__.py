"""The public interface as documents: OpenAPI for each door, AsyncAPI for the device protocol.

They are made from the types that read the requests; `completed` fills in what those types leave for later.
`python -m edge.openapi DIRECTORY` writes them into files.
"""
