"""From a recipe and the facts of an account to a plan: types, pools, networks, prices, limits, placement.

In: a `Recipe` and `PreflightFacts`, which `launch` has looked up. Out: a `Plan`, the order of the attempts
to launch it, the instances of a resize.
`launch` and the commands call it. It never makes a request: what it must know is handed to it.
"""
