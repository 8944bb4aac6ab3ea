/* The module dynajit._C: each file adds what it has. */
#include "python/compat.h"

#define FILES(X) \
    X(object_access) \
    X(tensor_view) \
    X(global_state) \
    X(assumed) \
    X(guard_program) \
    X(code_cache) \
    X(frame_hook) \
    X(fast_call) \
    X(graph_call) \
    X(tail_call) \
    X(cuda_driver) \
    X(plan_executor) \
    X(graph_replay) \
    X(memory_pool) \
    X(training_call) \
    X(runtime_call) \
    X(attribute_filler) \
    X(state_change) \
    X(thread_state) \
    X(graph_values) \
    X(graph_tape) \
    X(context_token)

#define X(name) int dj_##name##_init(PyObject *module);
FILES(X)
#undef X

static int add_everything(PyObject *module)
{
    int (*const initialisers[])(PyObject *) = {
#define X(name) dj_##name##_init,
        FILES(X)
#undef X
    };
    for (size_t i = 0; i < Py_ARRAY_LENGTH(initialisers); i++) {
        if (initialisers[i](module) < 0) {
            return -1;
        }
    }
    return 0;
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "dynajit._C",
    .m_doc = "Frame hook, code cache, guard program and call objects.",
    .m_size = -1, /* one interpreter: torch has no more either */
};

PyMODINIT_FUNC PyInit__C(void)
{
    if (dj_compat_init() < 0) {
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL
        && (add_everything(module) < 0
            || PyModule_AddStringConstant(module, "TORCH_RELEASE", DJ_TORCH_RELEASE) < 0)) {
        Py_CLEAR(module);
    }
    return module;
}
