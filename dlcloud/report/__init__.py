"""Turn what was measured into tables, charts and pages: cost per throughput, with dates and intervals.

In: values of `model` … `scheduling`, which a use case has read. Out: text, cells and pages. Never knows of
the store or of a cloud; `app.results` reads the rows (`rows.py`) and the timelines (`timelines.py`).
"""
