"""The HTML page of a report, and the charts on it.

In: tables of `report.table`, values of `results` and `scheduling`. Out: one file that needs no network. Use
cases call `page.py`; it reads no store.
"""
