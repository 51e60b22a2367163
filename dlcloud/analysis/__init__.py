"""From the records of programs to answers: results, their costs, comparison, ranking, trainings, benches.

In: runs and records, as the store keeps them. Out: rows, ratios with intervals, estimates, spending.
The commands, the store and the reports call it. It never reads the store, and it formats no table.
"""
