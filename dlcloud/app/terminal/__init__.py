"""The terminal of a command: what it prints, and how signals reach it.

In: events, tables, questions, signals. Out: lines on stdout and stderr, answers, `Interrupt`. All use cases
call it. During a termination a signal prints and never raises (`signals.py`). It knows no cluster.
"""
