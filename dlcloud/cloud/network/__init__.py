"""Ways to a cluster: its network and security group, Session Manager, Instance Connect Endpoints.

In: the network that a recipe names. Out: values of `planning`, or a socket. SSH itself is in `ssh`.
"""
