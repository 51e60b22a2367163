"""What everything speaks of: instances, clusters, money, errors, events, the clock, untrusted text.

In: nothing. Out: frozen values, and the small protocols of what lies outside (`Clock`, `Connection`).
Every floor above calls it. It never decides, and it touches no file, network, log or clock.
"""
