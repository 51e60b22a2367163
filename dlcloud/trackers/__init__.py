"""Clients of trackers, by their own protocols over HTTP.

In: values of a run. Out: requests to one server. It is imported only where a recipe names a tracker, and
needs no library of that tracker's.
"""
