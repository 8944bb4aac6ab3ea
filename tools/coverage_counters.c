/* What gcc's -fsanitize-coverage=trace-pc calls at each branch: a counter for each place, in a table that a fuzzer's engine
 * watches (tests/fuzz/guided.py). A library of its own, which is not instrumented. */
#include <stdint.h>

#define PLACES (1 << 16)

uint8_t dynajit_counters[PLACES];
/* libFuzzer wants an address and a flag for each counter */
uintptr_t dynajit_places[2 * PLACES];

void __sanitizer_cov_trace_pc(void)
{
    uintptr_t at = (uintptr_t)__builtin_return_address(0);
    uint8_t *counter = &dynajit_counters[(at ^ (at >> 16)) & (PLACES - 1)];
    if (*counter < 255) {
        ++*counter;
    }
}
