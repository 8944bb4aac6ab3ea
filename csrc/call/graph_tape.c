/* GraphTape: an fx graph run node by node, without a Python frame.
 *
 * In: the graph's inputs. Out: what its output node holds. What one node does is a step: call a function or a method, or
 * build the tuple or list that an argument is. Values lie in slots, inputs first; a slot is let go of after its last
 * use. What a step raises gets a place in its traceback as if the graph's own code had run, with that code's file and
 * line. dynajit/backends/tape.py makes the steps. */
#include "call/call.h"
#include "python/heap_type.h"

#include <frameobject.h>
#include <structmember.h>

typedef enum { CALL, METHOD, TUPLE, LIST } StepKind;

typedef struct {
    StepKind kind;
    int line;
    PyObject *callable; /* owned: the function, or the method's name; NULL for what is built */
    PyObject *kwnames;  /* owned, or NULL */
    int n_operands;     /* those for kwnames are last */
    int n_dropped;
    int *operands;      /* owned: a slot, or ~place of a constant; what is dropped follows */
} Step;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Py_ssize_t n_inputs;
    Py_ssize_t n_steps;
    Py_ssize_t most_operands;
    Step *steps;
    PyObject *given;     /* the tuple that the steps were made of */
    PyObject *constants; /* tuple */
    PyObject *globals;   /* of the frame that tracebacks show */
    PyObject *code;      /* the graph's own; it keeps its text for tracebacks */
} GraphTape;

enum { INLINE_VALUES = 64 };

/* ---- running ---- */

/* What a traceback would show if the graph's code had run. */
static void show_place(const GraphTape *self, int line)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    const char *file = PyUnicode_AsUTF8(((PyCodeObject *)self->code)->co_filename);
    PyCodeObject *code = file != NULL ? PyCode_NewEmpty(file, "forward", line) : NULL;
    PyFrameObject *frame = code != NULL ? PyFrame_New(PyThreadState_Get(), code, self->globals, NULL) : NULL;
    Py_XDECREF(code);
    PyErr_Restore(type, value, trace); /* in place of whatever made no frame */
    if (frame != NULL) {
        PyTraceBack_Here(frame);
        Py_DECREF(frame);
    }
}

static PyObject *build(StepKind kind, PyObject *const *values, int n)
{
    PyObject *made = kind == TUPLE ? PyTuple_New(n) : PyList_New(n);
    for (int i = 0; made != NULL && i < n; i++) {
        if (kind == TUPLE) {
            PyTuple_SET_ITEM(made, i, Py_NewRef(values[i]));
        }
        else {
            PyList_SET_ITEM(made, i, Py_NewRef(values[i]));
        }
    }
    return made;
}

static inline PyObject *run_step(const Step *step, PyObject *const *values)
{
    Py_ssize_t n = step->n_operands - (step->kwnames != NULL ? PyTuple_GET_SIZE(step->kwnames) : 0);
    switch (step->kind) {
    case CALL:
        return PyObject_Vectorcall(step->callable, values, (size_t)n | PY_VECTORCALL_ARGUMENTS_OFFSET, step->kwnames);
    case METHOD:
        return PyObject_VectorcallMethod(step->callable, values, (size_t)n | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                         step->kwnames);
    default:
        return build(step->kind, values, step->n_operands);
    }
}

/* The slots after the inputs hold references. */
static inline void let_go(const GraphTape *self, PyObject **slots, Py_ssize_t slot)
{
    PyObject *value = slots[slot];
    slots[slot] = NULL;
    if (slot >= self->n_inputs) {
        Py_XDECREF(value);
    }
}

static PyObject *run(const GraphTape *self, PyObject *const *inputs, PyObject **slots, PyObject **values)
{
    memcpy(slots, inputs, (size_t)self->n_inputs * sizeof(PyObject *));
    PyObject **next = slots + self->n_inputs;
    PyObject *const *constants = &PyTuple_GET_ITEM(self->constants, 0);
    for (const Step *step = self->steps, *end = step + self->n_steps; step < end; step++) {
        for (int i = 0; i < step->n_operands; i++) {
            int operand = step->operands[i];
            values[i] = operand >= 0 ? slots[operand] : constants[~operand];
        }
        PyObject *result = run_step(step, values);
        if (result == NULL) {
            show_place(self, step->line);
            while (next > slots + self->n_inputs) {
                let_go(self, slots, --next - slots);
            }
            return NULL;
        }
        *next++ = result;
        for (int i = 0; i < step->n_dropped; i++) {
            let_go(self, slots, step->operands[step->n_operands + i]);
        }
    }
    return next[-1]; /* all others are dropped by now */
}

static PyObject *tape_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    GraphTape *self = (GraphTape *)object;
    if (PyVectorcall_NARGS(nargsf) != self->n_inputs || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0)) {
        return PyErr_Format(PyExc_TypeError, "the graph takes %zd inputs by position, not %zd", self->n_inputs,
                            PyVectorcall_NARGS(nargsf));
    }
    PyObject *room[INLINE_VALUES];
    Py_ssize_t n_slots = self->n_inputs + self->n_steps;
    PyObject **all = room;
    if (n_slots + 1 + self->most_operands > INLINE_VALUES) {
        all = PyMem_New(PyObject *, n_slots + 1 + self->most_operands);
        if (all == NULL) {
            return PyErr_NoMemory();
        }
    }
    Py_INCREF(self);
    PyObject *result = run(self, args, all, all + n_slots + 1); /* one more in front of the values, for callees */
    Py_DECREF(self);
    if (all != room) {
        PyMem_Free(all);
    }
    return result;
}

/* ---- building ---- */

static int parse_operands(Step *step, PyObject *operands, PyObject *dropped, Py_ssize_t n_slots, Py_ssize_t n_constants)
{
    step->n_operands = (int)PyTuple_GET_SIZE(operands);
    step->n_dropped = (int)PyTuple_GET_SIZE(dropped);
    step->operands = PyMem_New(int, step->n_operands + step->n_dropped + 1);
    if (step->operands == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < step->n_operands + step->n_dropped; i++) {
        bool used = i < step->n_operands;
        PyObject *number = used ? PyTuple_GET_ITEM(operands, i) : PyTuple_GET_ITEM(dropped, i - step->n_operands);
        long place = PyLong_AsLong(number);
        if (place == -1 && PyErr_Occurred()) {
            return -1;
        }
        /* what the step itself makes may be dropped at once */
        if (place >= n_slots + !used || place < (used ? -n_constants : 0)) {
            PyErr_Format(PyExc_ValueError, "a step uses or drops %ld of %zd slots and %zd constants", place, n_slots,
                         n_constants);
            return -1;
        }
        step->operands[i] = (int)place;
    }
    return 0;
}

static int parse_step(GraphTape *self, PyObject *tuple)
{
    static const char *const kinds[] = {"call", "method", "tuple", "list"};
    const char *kind;
    int line;
    PyObject *callable, *operands, *kwnames, *dropped;
    if (!PyArg_ParseTuple(tuple, "sOO!O!O!i:step", &kind, &callable, &PyTuple_Type, &operands, &PyTuple_Type, &kwnames,
                          &PyTuple_Type, &dropped, &line)) {
        return -1;
    }
    int found = 0;
    while (found < (int)Py_ARRAY_LENGTH(kinds) && strcmp(kinds[found], kind) != 0) {
        found++;
    }
    bool known = found < (int)Py_ARRAY_LENGTH(kinds);
    Py_ssize_t n_named = PyTuple_GET_SIZE(kwnames), n_positional = PyTuple_GET_SIZE(operands) - n_named;
    bool builds = found == TUPLE || found == LIST;
    if (!known || n_positional < (found == METHOD) || (builds && n_named > 0)
        || (found == METHOD && !PyUnicode_Check(callable))) {
        PyErr_Format(PyExc_ValueError, "no step is %s of %zd operands and %zd names", kind, n_positional, n_named);
        return -1;
    }
    Step *step = &self->steps[self->n_steps];
    step->kind = (StepKind)found;
    step->line = line;
    step->callable = builds ? NULL : Py_NewRef(callable);
    step->kwnames = n_named > 0 ? Py_NewRef(kwnames) : NULL;
    self->n_steps++;
    self->most_operands = Py_MAX(self->most_operands, PyTuple_GET_SIZE(operands));
    return parse_operands(step, operands, dropped, self->n_inputs + self->n_steps - 1, PyTuple_GET_SIZE(self->constants));
}

static PyObject *tape_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"n_inputs", "steps", "constants", "globals", "code", NULL};
    Py_ssize_t n_inputs;
    PyObject *steps, *constants, *globals, *code;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nO!O!O!O!:GraphTape", names, &n_inputs, &PyTuple_Type, &steps,
                                     &PyTuple_Type, &constants, &PyDict_Type, &globals, &PyCode_Type,
                                     &code)) {
        return NULL;
    }
    if (n_inputs < 0 || PyTuple_GET_SIZE(steps) == 0) {
        PyErr_SetString(PyExc_ValueError, "a tape has at least one step, and no fewer than no inputs");
        return NULL;
    }
    GraphTape *self = (GraphTape *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = tape_call;
    self->n_inputs = n_inputs;
    self->given = Py_NewRef(steps);
    self->constants = Py_NewRef(constants);
    self->globals = Py_NewRef(globals);
    self->code = Py_NewRef(code);
    self->steps = PyMem_Calloc((size_t)PyTuple_GET_SIZE(steps), sizeof(Step));
    if (self->steps == NULL) {
        PyErr_NoMemory();
        Py_CLEAR(self);
    }
    for (Py_ssize_t i = 0; self != NULL && i < PyTuple_GET_SIZE(steps); i++) {
        if (parse_step(self, PyTuple_GET_ITEM(steps, i)) < 0) {
            Py_CLEAR(self);
        }
    }
    return (PyObject *)self;
}

#define TAPE_FIELDS(apply) apply(given) apply(constants) apply(globals) apply(code)

static int tape_traverse(PyObject *object, visitproc visit, void *arg)
{
    GraphTape *self = (GraphTape *)object;
    Py_VISIT(Py_TYPE(object));
    TAPE_FIELDS(DJ_VISIT_FIELD)
    for (Py_ssize_t i = 0; i < self->n_steps; i++) {
        Py_VISIT(self->steps[i].callable);
    }
    return 0;
}

static int tape_clear(PyObject *object)
{
    GraphTape *self = (GraphTape *)object;
    Step *steps = self->steps;
    Py_ssize_t n = self->n_steps;
    self->steps = NULL;
    self->n_steps = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_XDECREF(steps[i].callable);
        Py_XDECREF(steps[i].kwnames);
        PyMem_Free(steps[i].operands);
    }
    PyMem_Free(steps);
    TAPE_FIELDS(DJ_CLEAR_FIELD)
    return 0;
}

static PyObject *tape_repr(PyObject *object)
{
    GraphTape *self = (GraphTape *)object;
    return PyUnicode_FromFormat("<dynajit graph tape of %zd steps, %U>", self->n_steps, ((PyCodeObject *)self->code)->co_filename);
}

static PyMemberDef tape_members[] = {
    {"n_inputs", T_PYSSIZET, offsetof(GraphTape, n_inputs), READONLY, "How many inputs a call takes."},
    {"steps", T_OBJECT, offsetof(GraphTape, given), READONLY, "What a call runs."},
    {"constants", T_OBJECT, offsetof(GraphTape, constants), READONLY, "What negative operands mean."},
    {"globals", T_OBJECT, offsetof(GraphTape, globals), READONLY, "Of the frame that tracebacks show."},
    {"code", T_OBJECT, offsetof(GraphTape, code), READONLY, "The code whose lines tracebacks show."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(GraphTape, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot tape_slots[] = {
    {Py_tp_doc, "GraphTape(n_inputs, steps, constants, globals, code)\n--\n\n"
                "An fx graph that is run step by step. A step: (kind, function or method's name or None, operands, names "
                "of the last operands, slots to drop, line). Kinds: call, method, tuple, list. An operand is a slot, or "
                "~place of a constant; step i fills slot n_inputs + i, the last one the result."},
    DJ_COLLECTED_SLOTS(tape, tape_new, dj_dealloc),
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_repr, tape_repr},
    {Py_tp_members, tape_members},
    {0, NULL},
};

static PyType_Spec tape_spec = DJ_CLASS(GraphTape, "GraphTape", DJ_COLLECTED | Py_TPFLAGS_HAVE_VECTORCALL, tape_slots);

int dj_graph_tape_init(PyObject *module)
{
    return dj_add_type(module, &tape_spec) != NULL ? 0 : -1;
}
