"""Times of two functions in turns, which is the only fair way on a machine that does other things too.

In: functions without arguments. Out: the median of each, in milliseconds. All examples measure with this.
"""

import statistics
import time
from collections.abc import Callable


def medians(*functions: Callable[[], object], seconds: float = 1.0) -> list[float]:
    """Milliseconds of each function: the median of calls in turns, for `seconds` in all and three rounds at least.

    Each is called twice before, so that nothing is compiled while the clock runs.
    """
    for function in functions * 2:
        function()
    rounds: list[list[float]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < 3 or time.perf_counter() < end:
        times = []
        for function in functions:
            begin = time.perf_counter()
            function()
            times.append((time.perf_counter() - begin) * 1e3)
        rounds.append(times)
    return [statistics.median(column) for column in zip(*rounds)]
