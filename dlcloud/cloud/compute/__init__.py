"""Instances: requested, found and ended, with their fleets, images, reservations and claims of control.

In: launch requests of `planning`. Out: values of `model`. `requests.py` holds every argument of a request;
`planning` decides which to send.
"""
