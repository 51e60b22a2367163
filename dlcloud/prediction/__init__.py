"""What a job does on instance types where it never ran: estimates with intervals, and races between types.

In: the table of what types are like, measurements of a job on some types, prices. Out: the types to measure,
predicted throughput and USD per million items, and which candidates of a race can still be the cheapest.
`app` calls it. It never reads a file, and it states no figure without measurements of the job.
"""
