"""Be EC2 on this machine: moto behind a WSGI layer, an SSH server and a metadata service per instance.

A process of its own, started only by `cli`; never listens beyond loopback, never imported by a flow.
"""
