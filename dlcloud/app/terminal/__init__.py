"""The terminal of a command: what it prints, and how signals reach it.

In: events, tables, questions, signals. Out: lines on stdout and stderr, answers, `Interrupt`. All use cases
call it. During an end of instances a signal prints and never raises (`ends.py`). It knows no cluster.
"""
