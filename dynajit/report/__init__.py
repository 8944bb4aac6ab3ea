"""What the compiler tells about itself.

In: records that capture publishes (`records.py`), log lines (`logs.py`), phase timings (`phases.py`). Out: log
output, `dynajit.counters`, `dynajit.explain`'s report, the caret under the user's line. The reasons for graph breaks
are data in `breaks.py`. One more log artifact: a line in `logs.ARTIFACTS`. One more count: a line in
`counters.Counters.add`.
"""
