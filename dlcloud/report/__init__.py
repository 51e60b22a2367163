"""Turn what was measured into tables, charts and pages: cost per throughput, with dates and intervals.

In: values of `model` … `scheduling`, which a use case has read. Out: text, cells and pages. One module per
subject has its tables and its charts (`training.py`, `experiment.py`, `deadlines.py`, `prediction.py`); the
cost report is `cost_tables.py` with `cost_columns.py`, `answer.py` and `cost_charts.py`. `table.py` renders
every format, `page.py` the HTML page. A report never reads a store or a cloud: `app.results` does.
"""
