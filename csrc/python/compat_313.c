/* CPython 3.13.
 *
 * Against 3.12: a frame's code is `f_executable`, `instr_ptr` is the instruction about to begin rather than the one
 * before it, and attributes without a dict lie inside the object. */
#define Py_BUILD_CORE 1
#include "python/compat.h"
#include "python/recursion.h"

#if PY_VERSION_HEX >= 0x030D0000 && PY_VERSION_HEX < 0x030E0000

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* CPython's headers' own */
#include <internal/pycore_frame.h>

#include <internal/pycore_code.h>
#pragma GCC diagnostic pop

#define DJ_CODE_FIELD f_executable
#define DJ_FUNCTION_FIELD f_funcobj
#define DJ_INSTRUCTION_FIELD instr_ptr
#define DJ_START(code) _PyCode_CODE(code)
#include "python/compat_frame.h"

bool dj_few_c_calls_left(const PyThreadState *tstate)
{
    return tstate->c_recursion_remaining < Py_C_RECURSION_LIMIT / 2;
}

#endif
