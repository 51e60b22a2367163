"""Turn what was measured into tables, charts and pages: cost per throughput, with dates and intervals.

In: values of `model` … `scheduling`, which a use case has read. Out: text, cells and pages. `table.py` has
the formats, `costs` what was measured, `plans` what could run, `html` the page. Never knows of a store or
cloud; `app.results` reads the rows (`rows.py`) and the timelines (`timelines.py`).
"""
