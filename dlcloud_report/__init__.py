"""Report a throughput from a script: does nothing outside of a benchmark, so that the lines can stay.

    import dlcloud_report
    dlcloud_report.step(images)                     # once a step: the time between two calls is taken
    dlcloud_report.throughput(images / seconds)     # or as often as one is known

On instances, a module of this name is beside the script; this one is for editors and for runs at home.
"""

from dlcloud.benchmarks.command.reporting import step as step
from dlcloud.benchmarks.command.reporting import throughput as throughput

__all__ = ["step", "throughput"]
