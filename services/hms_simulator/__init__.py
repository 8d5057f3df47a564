"""A simulator of Huawei's Push Kit (HMS), strict as Huawei documents it. An installation uses it by default.

clients.py: clients and the access tokens they are granted     requests.py: what Huawei refuses
server.py: the service, over HTTP/1.1 and TLS
"""
