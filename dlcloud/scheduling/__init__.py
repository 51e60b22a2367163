"""The decisions of a running cluster: its workers, its pools before a deadline, who controls it.

In: workers and the situation as observed. Out: a `ScalingDecision`, a `PoolDecision` or a
`SuccessionDecision`, each with its reasons. `policies` decide where a deadline's work runs, `simulation`
replays them on traces. `elastic` and `detached` call it. It never launches or ends an instance.
"""
