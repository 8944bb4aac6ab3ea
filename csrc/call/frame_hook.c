/* The PEP 523 frame evaluator.
 *
 * In: a frame that is about to run, on a thread whose callback is on. Out: the frame's result, from a compiled variant
 * where one fits, else from whatever evaluator stood there before. The evaluator is installed only while some thread
 * has its callback on.
 *
 * Other evaluators. torch.compile installs one too. Each remembers the one it found and hands frames on to it, so the
 * evaluators form a chain in which one may stand twice (dynajit inside torch.compile inside dynajit). `previous` keeps
 * what stood below each of our places in the chain. A frame that comes back to us while we are handing it on goes to the
 * next lower place, so that no frame goes round for ever. */
#include "call/call.h"
#include "python/recursion.h"

enum { MAX_CHAIN = 16 };

static FrameEvaluator previous[MAX_CHAIN];
static int depth;   /* our places in the chain */
static int n_users; /* threads whose mode is not off */
static PyInterpreterState *interpreter; /* the only one that imports the module */

typedef struct {
    HookMode mode;
    Frame *handed_on; /* the frame that an evaluator below us has now */
    int handed_level; /* which of `previous` has it */
    struct {
        PyObject *function; /* the next frame is its, unless the call fails; NULL: none is waited for */
        PyObject **owned;
        Py_ssize_t n;
        int change; /* what waiting did to the chain */
    } release;
    PyObject *variant; /* borrowed, to be compared with only: the next frame is likely this function's */
    PyObject *passed;  /* the same, of a function that no variant fits */
} Thread;

static __thread Thread threads_own;

/* This thread's. A shared library finds it by a call, which compilers think is free and make again for each use; what
 * comes out of an assembler statement they keep. */
static inline Thread *this_thread(void)
{
    Thread *self = &threads_own;
    __asm__("" : "+r"(self));
    return self;
}

enum { NO_CHANGE, PUSHED, COVERED, POPPED, ONLY_MODE };

static PyObject *eval_frame(PyThreadState *tstate, Frame *frame, int throwflag);

static FrameEvaluator current_evaluator(void)
{
    return _PyInterpreterState_GetEvalFrameFunc(interpreter);
}

static void set_evaluator(FrameEvaluator evaluator)
{
    _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluator);
}

/* ---- installing ---- */

static int install(void)
{
    FrameEvaluator current = current_evaluator();
    if (current == eval_frame) {
        return NO_CHANGE;
    }
    if (depth > 0 && previous[depth - 1] == current) {
        set_evaluator(eval_frame);
        return COVERED;
    }
    if (depth == MAX_CHAIN) {
        return NO_CHANGE; /* still reached from above, through the chain */
    }
    previous[depth++] = current;
    set_evaluator(eval_frame);
    return PUSHED;
}

/* Our topmost place can be given up only while nobody stands above it. */
static int uninstall(void)
{
    if (depth == 0 || current_evaluator() != eval_frame) {
        return NO_CHANGE;
    }
    set_evaluator(previous[--depth]);
    return POPPED;
}

static bool mode_is_active(const HookMode *mode)
{
    return mode->callback != NULL || mode->shielded;
}

/* Makes `mode` the thread's mode, counts users, and says what that did to the chain. Steals nothing. */
static inline int change_mode(Thread *self, HookMode mode)
{
    bool was_active = mode_is_active(&self->mode);
    bool is_active = mode_is_active(&mode);
    self->mode = mode;
    n_users += (int)is_active - (int)was_active;
    if (is_active) {
        return install();
    }
    return n_users == 0 && was_active ? uninstall() : NO_CHANGE;
}

static inline void enter_mode(Thread *self, HookRegion *region, HookMode mode)
{
    region->thread = self;
    region->outer = self->mode;
    Py_XINCREF(mode.callback);
    Py_XINCREF(mode.key);
    region->change = change_mode(self, mode);
}

void dj_hook_enter(HookRegion *region, PyObject *callback, PyObject *key)
{
    enter_mode(this_thread(), region, (HookMode){.callback = callback, .key = key, .shielded = false});
}

/* Nobody but CPython's own evaluator is in the chain, or nobody but us on top of it. */
static bool alone(void)
{
    FrameEvaluator current = current_evaluator();
    return current == _PyEval_EvalFrameDefault
        || (current == eval_frame && depth == 1 && previous[0] == _PyEval_EvalFrameDefault);
}

/* torch.compile's frame evaluator stands in the chain and looks at this thread's frames, to compile them. */
static bool torch_compile_is_on(void)
{
    if (alone()) {
        return false;
    }
    static PyObject *ask; /* whoever asks has the GIL */
    if (ask == NULL) {
        PyObject *torch = PyImport_ImportModule("torch._C");
        PyObject *bindings = torch != NULL ? PyObject_GetAttrString(torch, "_dynamo") : NULL;
        PyObject *frames = bindings != NULL ? PyObject_GetAttrString(bindings, "eval_frame") : NULL;
        ask = frames != NULL ? PyObject_GetAttrString(frames, "get_eval_frame_callback") : NULL;
        Py_XDECREF(frames);
        Py_XDECREF(bindings);
        Py_XDECREF(torch);
    }
    PyObject *callback = ask != NULL ? PyObject_CallNoArgs(ask) : NULL;
    PyErr_Clear();
    Py_XDECREF(callback);
    return callback != NULL && callback != Py_None && callback != Py_False; /* off; on for what is compiled already */
}

bool dj_is_recorded(void)
{
    return dj_torch_is_watched() || dj_fx_is_tracing() || torch_compile_is_on();
}

/* Nobody captures what runs. */
static inline bool is_off(const Thread *self)
{
    return self->mode.shielded || (self->mode.callback == NULL && alone());
}

/* Alone in the chain we go away, so that CPython can inline calls; else we stay on top and keep what runs (the capture,
 * generated code, a backend's code) from the evaluators below, which would try to compile the compiler. */
static inline void enter_off(Thread *self, HookRegion *region)
{
    enter_mode(self, region, (HookMode){.callback = NULL, .key = self->mode.key, .shielded = !alone()});
}

/* We stay installed, and hand every frame to CPython's own evaluator: cheaper than going away and coming back, for code
 * that calls few functions written in Python. */
static inline void enter_shielded(Thread *self, HookRegion *region)
{
    enter_mode(self, region, (HookMode){.callback = NULL, .key = self->mode.key, .shielded = true});
}

void dj_hook_enter_off(HookRegion *region)
{
    enter_off(this_thread(), region);
}

bool dj_hook_pause(HookRegion *region, bool flat)
{
    Thread *self = this_thread();
    if (is_off(self) && (flat || !self->mode.shielded || !alone())) {
        return false;
    }
    if (!flat) {
        enter_off(self, region);
    }
    else if (self->mode.callback != NULL && current_evaluator() == eval_frame) {
        region->thread = self; /* we are active before, in between and after: nothing but the mode changes */
        region->outer = self->mode;
        region->change = ONLY_MODE;
        self->mode.callback = NULL;
        self->mode.shielded = true;
        Py_XINCREF(self->mode.key);
    }
    else {
        enter_shielded(self, region);
    }
    return true;
}

void dj_hook_leave(HookRegion *region)
{
    Thread *self = region->thread;
    HookMode inner = self->mode;
    if (region->change == ONLY_MODE) {
        if (inner.shielded && current_evaluator() == eval_frame) {
            self->mode = region->outer;
            Py_XDECREF(inner.callback);
            Py_XDECREF(inner.key);
            return;
        }
        region->change = NO_CHANGE; /* what ran in between has changed more */
    }
    bool was_active = mode_is_active(&inner);
    bool is_active = mode_is_active(&region->outer);
    self->mode = region->outer;
    n_users += (int)is_active - (int)was_active;
    if (n_users == 0) {
        if (was_active) {
            uninstall();
        }
    }
    else if (region->change == PUSHED && depth > 1) {
        uninstall();
    }
    else if (region->change == COVERED && current_evaluator() == eval_frame) {
        set_evaluator(previous[depth - 1]);
    }
    else if (region->change == POPPED || depth == 0) {
        install();
    }
    /* Last, because a destructor may run Python code. */
    Py_XDECREF(inner.callback);
    Py_XDECREF(inner.key);
}

void dj_hook_pass(PyObject *function)
{
    this_thread()->passed = function;
}

/* ---- giving up arguments once the frame has them ---- */

static void stop_waiting(Thread *self)
{
    int change = self->release.change;
    self->release.function = NULL;
    if (change == NO_CHANGE || current_evaluator() != eval_frame) {
        return;
    }
    if (change == PUSHED) {
        uninstall();
    }
    else if (change == COVERED) {
        set_evaluator(previous[depth - 1]);
    }
}

static void release_arguments(Thread *self, Frame *frame)
{
    PyObject **owned = self->release.owned;
    Py_ssize_t n = self->release.n;
    bool expected = (PyObject *)dj_frame_function(frame) == self->release.function;
    stop_waiting(self);
    for (Py_ssize_t i = 0; expected && i < n; i++) {
        Py_CLEAR(owned[i]);
    }
}

static inline PyObject *call_releasing(Thread *self, PyObject *function, PyObject *const *args, size_t nargsf,
                                       PyObject *kwnames, PyObject **owned, Py_ssize_t n_owned)
{
    if (owned == NULL) {
        return dj_call_function(function, args, nargsf, kwnames);
    }
    self->release.function = function;
    self->release.owned = owned;
    self->release.n = n_owned;
    self->release.change = install();
    PyObject *result = dj_call_function(function, args, nargsf, kwnames);
    if (self->release.function == function && self->release.owned == owned) {
        stop_waiting(self); /* the call failed before there was a frame */
    }
    return result;
}

PyObject *dj_call_releasing(PyObject *function, PyObject *const *args, size_t nargsf, PyObject *kwnames,
                            PyObject **owned, Py_ssize_t n_owned)
{
    return call_releasing(this_thread(), function, args, nargsf, kwnames, owned, n_owned);
}

/* ---- handing a frame on ---- */

static PyObject *hand_on(PyThreadState *tstate, Frame *frame, int throwflag)
{
    Thread *self = this_thread();
    int level = depth - 1;
    if (self->handed_on == frame && self->handed_level - 1 < level) {
        level = self->handed_level - 1;
    }
    if (level < 0 || previous[level] == _PyEval_EvalFrameDefault) {
        return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    }
    Frame *outer_frame = self->handed_on;
    int outer_level = self->handed_level;
    self->handed_on = frame;
    self->handed_level = level;
    PyObject *result = previous[level](tstate, frame, throwflag);
    self->handed_on = outer_frame;
    self->handed_level = outer_level;
    return result;
}

/* Nothing is captured while somebody traces Python or torch, or where C's stack is deep. And we go away: where there is a hook CPython
 * runs generators and calls by other ways, of which tracers see other events, and each call is one in C. Where the stack is deep we
 * go though other threads capture; they bring us back when they next begin. */
static __attribute__((noinline)) PyObject *hand_on_and_go(PyThreadState *tstate, Frame *frame, int throwflag)
{
    if (!alone()) {
        return hand_on(tstate, frame, throwflag);
    }
    HookRegion region;
    dj_hook_enter_off(&region);
    bool gone = dj_stack_is_deep(tstate) && uninstall() == POPPED;
    PyObject *result = _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    if (gone && n_users > 0) {
        install();
    }
    dj_hook_leave(&region);
    return result;
}

/* ---- capturing ---- */

/* New reference to the variant to run, NULL to run the original, or NULL with an error set. */
static Variant *capture(PyCodeObject *code, PyFunctionObject *function, PyObject *const *locals, Py_ssize_t n,
                        MissList *misses)
{
    PyObject *callback = Py_NewRef(this_thread()->mode.callback);
    PyObject *result = NULL;
    PyObject *reasons = dj_misses_as_list(misses);
    dj_misses_clear(misses);
    PyObject *tuple = PyTuple_New(n);
    if (reasons != NULL && tuple != NULL) {
        for (Py_ssize_t i = 0; i < n; i++) {
            PyTuple_SET_ITEM(tuple, i, Py_NewRef(locals[i]));
        }
        PyObject *args[4] = {(PyObject *)code, (PyObject *)function, tuple, reasons};
        HookRegion region;
        dj_hook_enter_off(&region);
        RecursionRoom room = dj_recursion_room_enter(PyThreadState_Get());
        result = PyObject_Vectorcall(callback, args, 4, NULL);
        dj_recursion_room_leave(PyThreadState_Get(), room);
        dj_hook_leave(&region);
    }
    Py_XDECREF(reasons);
    Py_XDECREF(tuple);
    Py_DECREF(callback);
    if (result == Py_None) {
        Py_CLEAR(result);
        return NULL;
    }
    if (result != NULL && !Py_IS_TYPE(result, dj_VariantType)) {
        PyErr_Format(PyExc_TypeError, "the capture callback must return a Variant or None, not %.200s",
                     Py_TYPE(result)->tp_name);
        Py_CLEAR(result);
    }
    if (result != NULL && dj_guard_n_locals(((Variant *)result)->guards) != n) {
        PyErr_Format(PyExc_ValueError, "the captured variant reads %zd locals; %U has %zd",
                     dj_guard_n_locals(((Variant *)result)->guards), code->co_name, n);
        Py_CLEAR(result);
    }
    return (Variant *)result;
}

/* ---- running a variant ---- */

enum { INLINE_LOCALS = 32 };

/* Calls the variant's function with the locals and the inputs. */
static PyObject *call_with_inputs(Thread *self, PyObject *function, PyObject *const *locals, Py_ssize_t n,
                                  PyObject **owned, Py_ssize_t n_owned, PyObject *inputs)
{
    PyObject *few[INLINE_LOCALS];
    PyObject **all = n < INLINE_LOCALS ? few : PyMem_New(PyObject *, n + 1);
    if (all == NULL) {
        return PyErr_NoMemory();
    }
    memcpy(all, locals, (size_t)n * sizeof(PyObject *));
    all[n] = inputs;
    PyObject *result = call_releasing(self, function, all, (size_t)n + 1, NULL, owned, n_owned);
    if (all != few) {
        PyMem_Free(all);
    }
    return result;
}

static inline PyObject *call_variant(Thread *self, PyObject *function, PyObject *const *locals, Py_ssize_t n,
                                     PyObject **owned, Py_ssize_t n_owned, PyObject *inputs)
{
    self->variant = self->mode.callback != NULL ? function : NULL; /* else no evaluator of ours looks for it */
    return inputs == NULL ? call_releasing(self, function, locals, (size_t)n, NULL, owned, n_owned)
                          : call_with_inputs(self, function, locals, n, owned, n_owned, inputs);
}

PyObject *dj_run_variant(Variant *variant, PyObject *callback, PyObject *const *locals, Py_ssize_t n,
                         PyObject **owned, Py_ssize_t n_owned, PyObject *inputs)
{
    Thread *self = this_thread();
    PyObject *function = Py_NewRef(variant->function);
    PyObject *result;
    bool as_is = variant->needs_hook ? self->mode.callback == callback && self->mode.key == variant->key : is_off(self);
    if (as_is) {
        result = call_variant(self, function, locals, n, owned, n_owned, inputs);
    }
    else {
        HookRegion region;
        if (variant->needs_hook) {
            dj_hook_enter(&region, callback, variant->key);
        }
        else if (owned != NULL) {
            enter_shielded(self, &region); /* the hook is what lets go of them */
        }
        else {
            enter_off(self, &region);
        }
        result = call_variant(self, function, locals, n, owned, n_owned, inputs);
        dj_hook_leave(&region);
    }
    Py_DECREF(function);
    return result;
}

/* The frame itself becomes the variant's frame, so references are counted as in an ordinary call. */
static PyObject *run_variant_in_frame(PyThreadState *tstate, Frame *frame, Variant *variant, PyObject *const *locals,
                                      Py_ssize_t n_params, Py_ssize_t n, PyObject *inputs)
{
    PyFunctionObject *function = (PyFunctionObject *)variant->function;
    Py_ssize_t n_more = n - n_params + (inputs != NULL);
    PyObject *few[INLINE_LOCALS];
    PyObject **more = n_more <= INLINE_LOCALS ? few : PyMem_New(PyObject *, n_more);
    if (more == NULL) {
        PyErr_NoMemory();
        return dj_frame_finish(tstate, frame, NULL);
    }
    for (Py_ssize_t i = n_params; i < n; i++) {
        more[i - n_params] = locals[i];
    }
    if (inputs != NULL) {
        more[n_more - 1] = inputs;
    }
    PyFunctionObject *original = dj_frame_function(frame);
    PyObject *closure = Py_XNewRef(original->func_closure); /* keeps the cells in `locals` alive */
    PyObject *result;
    HookRegion region;
    bool turn_off = !variant->needs_hook;
    if (turn_off) {
        dj_hook_enter_off(&region);
    }
    if (dj_frame_become(tstate, frame, function, n_params, more, n_more)) {
        Py_CLEAR(closure);
        result = _PyEval_EvalFrameDefault(tstate, frame, 0);
        dj_frame_drop_locals(frame);
    }
    else {
        result = call_variant(this_thread(), (PyObject *)function, locals, n, NULL, 0, inputs);
        result = dj_frame_finish(tstate, frame, result);
        Py_XDECREF(closure);
    }
    if (turn_off) {
        dj_hook_leave(&region);
    }
    if (more != few) {
        PyMem_Free(more);
    }
    return dj_finish_tails(result);
}

/* ---- the evaluator ---- */

static PyObject *eval_captured(PyThreadState *tstate, Frame *frame, CodeState *state, PyObject *const *locals,
                               Py_ssize_t n_params, Py_ssize_t n)
{
    MissList misses = {.count = 0};
    bool run_only = state != NULL && state->flags & DJ_RUN_ONLY;
    Variant *variant = NULL;
    PyObject *inputs = NULL;
    if (state != NULL && state->count > 0) {
        variant = dj_lookup(state, this_thread()->mode.key, dj_frame_globals(frame), locals,
                            run_only ? NULL : &misses, &inputs);
    }
    if (variant == NULL && !run_only) {
        variant = capture(dj_frame_code(frame), dj_frame_function(frame), locals, n, &misses);
        if (variant != NULL && dj_guard_n_inputs(variant->guards) > 0) {
            /* it was made for this call, so its guards are not asked */
            inputs = dj_guard_read_inputs(variant->guards, locals);
            if (inputs == NULL) {
                Py_CLEAR(variant);
            }
        }
    }
    dj_misses_clear(&misses);
    if (variant == NULL) {
        return PyErr_Occurred() ? dj_frame_finish(tstate, frame, NULL) : hand_on(tstate, frame, 0);
    }
    PyObject *result = run_variant_in_frame(tstate, frame, variant, locals, n_params, n, inputs);
    Py_XDECREF(inputs);
    Py_DECREF(variant);
    return result;
}

/* Apart, as `hand_on_and_go` is, for `eval_frame` stands on C's stack once for each frame of Python's. */
static __attribute__((noinline)) PyObject *eval_fresh_call(PyThreadState *tstate, Frame *frame, PyCodeObject *code,
                                                           CodeState *state)
{
    PyObject *closure = dj_frame_function(frame)->func_closure;
    Py_ssize_t n_params = dj_code_n_params(code);
    Py_ssize_t n_free = closure != NULL ? PyTuple_GET_SIZE(closure) : 0;
    PyObject *inline_room[INLINE_LOCALS];
    PyObject **room = inline_room;
    if (n_params + n_free > INLINE_LOCALS) {
        room = PyMem_New(PyObject *, n_params + n_free);
        if (room == NULL) {
            PyErr_NoMemory();
            return dj_frame_finish(tstate, frame, NULL);
        }
    }
    PyObject *const *locals = dj_frame_params(frame, room, n_params);
    if (n_free > 0) {
        if (locals != room) {
            memcpy(room, locals, (size_t)n_params * sizeof(PyObject *));
        }
        memcpy(room + n_params, &PyTuple_GET_ITEM(closure, 0), (size_t)n_free * sizeof(PyObject *));
        locals = room;
    }
    PyObject *result = eval_captured(tstate, frame, state, locals, n_params, n_params + n_free);
    if (room != inline_room) {
        PyMem_Free(room);
    }
    return result;
}

static PyObject *eval_frame(PyThreadState *tstate, Frame *frame, int throwflag)
{
    Thread *self = this_thread();
    if (self->release.function != NULL) {
        release_arguments(self, frame);
    }
    if (self->mode.shielded) {
        return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    }
    if (self->mode.callback == NULL) {
        PyObject *result = dj_stack_is_deep(tstate) ? hand_on_and_go(tstate, frame, throwflag)
                                                    : hand_on(tstate, frame, throwflag);
        if (n_users == 0) {
            uninstall(); /* whoever stood above us has gone and left us on top */
        }
        return result;
    }
    if (self->variant != NULL && self->variant == (PyObject *)dj_frame_function(frame)) {
        self->variant = NULL;
        return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    }
    if (dj_thread_is_traced(tstate) || dj_stack_is_deep(tstate) || (!throwflag && dj_is_recorded())) {
        return hand_on_and_go(tstate, frame, throwflag);
    }
    if (self->passed != NULL) {
        bool passed = self->passed == (PyObject *)dj_frame_function(frame);
        self->passed = NULL;
        if (passed) {
            return hand_on(tstate, frame, throwflag);
        }
    }
    if (throwflag || self->handed_on == frame || !dj_frame_is_fresh_call(frame)) {
        return hand_on(tstate, frame, throwflag);
    }
    PyCodeObject *code = dj_frame_code(frame);
    CodeState *state = dj_code_state(code);
    if (state != NULL && state->flags & DJ_OURS) {
        return _PyEval_EvalFrameDefault(tstate, frame, throwflag); /* generated code is nobody else's to compile */
    }
    if (state != NULL && state->flags & DJ_SKIP) {
        return hand_on(tstate, frame, throwflag);
    }
    return eval_fresh_call(tstate, frame, code, state);
}

/* ---- Python ---- */

static PyObject *set_callback(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *callback, *key = NULL;
    if (!PyArg_ParseTuple(args, "O|O:set_callback", &callback, &key)) {
        return NULL;
    }
    HookMode mode = {.callback = NULL, .key = NULL, .shielded = false};
    if (PyTuple_Check(callback) && PyTuple_GET_SIZE(callback) == 2 && key == NULL) {
        key = PyTuple_GET_ITEM(callback, 1);
        callback = PyTuple_GET_ITEM(callback, 0);
    }
    if (callback != Py_None) {
        if (!PyCallable_Check(callback)) {
            return PyErr_Format(PyExc_TypeError, "the callback must be callable, not %.200s",
                                Py_TYPE(callback)->tp_name);
        }
        mode.callback = Py_NewRef(callback);
        mode.key = Py_NewRef(key != NULL ? key : callback);
    }
    Thread *self = this_thread();
    HookMode old = self->mode;
    change_mode(self, mode);
    if (old.callback == NULL) {
        Py_XDECREF(old.key);
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(NN)", old.callback, old.key);
}

static PyObject *get_callback(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    const HookMode *mode = &this_thread()->mode;
    if (mode->callback == NULL) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(OO)", mode->callback, mode->key);
}

static PyObject *current_key(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    PyObject *key = this_thread()->mode.key;
    return Py_NewRef(key != NULL ? key : Py_None);
}

static PyObject *call_eager(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *function, *call_args = NULL, *call_kwargs = NULL;
    if (!PyArg_ParseTuple(args, "O|O!O:call_eager", &function, &PyTuple_Type, &call_args, &call_kwargs)) {
        return NULL;
    }
    if (call_kwargs == Py_None) {
        call_kwargs = NULL;
    }
    if (call_kwargs != NULL && !PyDict_Check(call_kwargs)) {
        return PyErr_Format(PyExc_TypeError, "kwargs must be a dict or None, not %.200s",
                            Py_TYPE(call_kwargs)->tp_name);
    }
    PyObject *empty = call_args == NULL ? PyTuple_New(0) : NULL;
    if (call_args == NULL && empty == NULL) {
        return NULL;
    }
    HookRegion region;
    dj_hook_enter(&region, NULL, NULL);
    PyObject *result = PyObject_Call(function, call_args != NULL ? call_args : empty, call_kwargs);
    dj_hook_leave(&region);
    Py_XDECREF(empty);
    return result;
}

static PyObject *call_deep(PyObject *module, PyObject *function)
{
    (void)module;
    RecursionRoom room = dj_recursion_room_enter(PyThreadState_Get());
    PyObject *result = PyObject_CallNoArgs(function);
    dj_recursion_room_leave(PyThreadState_Get(), room);
    return result;
}

static PyObject *hook_installed(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyBool_FromLong(current_evaluator() == eval_frame);
}

static PyObject *active_hook_count(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromLong(n_users);
}

static PyMethodDef methods[] = {
    {"set_callback", set_callback, METH_VARARGS,
     "set_callback(callback, key=None)\n--\n\n"
     "Turn this thread's callback on (a callable; key defaults to it) or off (None). Returns what was there, None or "
     "(callback, key), which may be given back as the only argument.\n"
     "The callback gets (code, function, locals, reasons) and returns a Variant to run, or None to run the original."},
    {"get_callback", get_callback, METH_NOARGS, "get_callback()\n--\n\nNone or (callback, key) of this thread."},
    {"current_key", current_key, METH_NOARGS,
     "current_key()\n--\n\nThe thread's key, also inside the callback, where the callback is off."},
    {"call_eager", call_eager, METH_VARARGS,
     "call_eager(function, args=(), kwargs=None)\n--\n\nCall with this thread's callback off."},
    {"call_deep", call_deep, METH_O,
     "call_deep(function)\n--\n\nCall it with room for 20,000 Python frames, whatever the program's limit is."},
    {"hook_installed", hook_installed, METH_NOARGS, "hook_installed()\n--\n\nOur evaluator is the interpreter's."},
    {"active_hook_count", active_hook_count, METH_NOARGS,
     "active_hook_count()\n--\n\nThreads whose callback is on, or that are shielded from other evaluators."},
    {NULL, NULL, 0, NULL},
};

int dj_frame_hook_init(PyObject *module)
{
    interpreter = PyInterpreterState_Get();
    return PyModule_AddFunctions(module, methods);
}
