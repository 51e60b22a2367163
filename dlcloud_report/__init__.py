"""Report a throughput from a script: does nothing outside of a benchmark, so that the lines can stay.

    import dlcloud_report
    dlcloud_report.step(images)                     # once a step: the time between two calls is taken
    dlcloud_report.throughput(images / seconds)     # or as often as one is known
    dlcloud_report.intermediate(accuracy)           # the metric so far: a search may end a run that lags
    first = dlcloud_report.checkpoint(model, optimizer)  # before a loop: restores them after an interruption
    dlcloud_report.checkpoint(step=step + 1)             # in the loop: saves them if it is due

On instances, a module of this name is beside the script; this one is for editors and for runs at home.
"""

from dlcloud.benchmarks.command.reporting import checkpoint as checkpoint
from dlcloud.benchmarks.command.reporting import intermediate as intermediate
from dlcloud.benchmarks.command.reporting import step as step
from dlcloud.benchmarks.command.reporting import throughput as throughput

__all__ = ["checkpoint", "intermediate", "step", "throughput"]
