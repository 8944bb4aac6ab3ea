/* The module dynajit._C: each file adds what it has. */
#include "python/attribute_filler.h"
#include "dynajit.h"
#include "plan/training_call.h"

static int add_everything(PyObject *module)
{
    int (*const initialisers[])(PyObject *) = {
        dj_object_access_init, dj_tensor_view_init, dj_global_state_init, dj_guard_program_init,
        dj_code_cache_init,    dj_frame_hook_init,  dj_fast_call_init,   dj_graph_call_init,
        dj_tail_call_init,     dj_cuda_driver_init, dj_plan_executor_init, dj_graph_replay_init,
        dj_memory_pool_init,   dj_training_call_init, dj_runtime_call_init, dj_attribute_filler_init,
        dj_graph_values_init,  dj_graph_tape_init,  dj_context_token_init,
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
    if (module != NULL && add_everything(module) < 0) {
        Py_CLEAR(module);
    }
    return module;
}
