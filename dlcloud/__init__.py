"""Run deep-learning workloads on EC2 for the least money, and measure what they cost.

The packages lie on floors; a module imports only from floors below its own
(`pyproject.toml`, `[tool.importlinter]`, checks it):

    cli                               commands, console, the one place that builds collaborators
    bench | elastic | report          what users ask for
    launch                            a plan carried out, undone on failure
    local                             the local EC2, a process of its own
    cloud | ssh | store | resources   the outside world, one library each
    core                              pure decisions and values
    benchmarks | trainer              stand-alone programs that run on the instances
"""
