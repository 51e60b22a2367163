"""From a recipe and the facts of an account to a plan: types, pools, networks, prices, limits, placement.

In: a `Recipe` and `PreflightFacts`, which `launch` has looked up. Out: a `Plan` (`plan.py`, which asks
`networks`, `fit`, `placement`, `reservations` and `limits`), the order of the requests to launch it
(`attempts`, `launch_request`), the instances of a resize, IAM policies. `launch` and the commands call it.
It never makes a request: what it must know is handed to it.
"""
