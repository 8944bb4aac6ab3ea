/* Memory of a check that passed: what need not be looked at again while nothing has changed.
 *
 * In: a guard program, the locals of a call, and the memory that guard_memo_make.c made of an earlier check. Out: the same
 * answer as the whole program's, from far fewer steps, or "unknown".
 *
 * For CPython 3.11 and 3.12 only: from 3.13 on dictionaries have no versions, and the whole program is run at each call.
 *
 * Most of it are words: addresses and what lay there. A dictionary carries a version that CPython changes at every write
 * and gives to no other dictionary ever; so does a type. Where an object was read out of a dictionary, an instance's
 * attributes or a class, one comparison of versions implies that it is the same object still, and alive, and with it most of
 * what was tested there: types, identities, keys. Where CPython has watchers (3.12) one number stands for all dictionaries.
 *
 * A step that fails proves nothing: the whole program is run then, and if it passes a new memory is made. What fails
 * again and again (a module that counts its calls, a local that is another object each time) is read each time. */
#include "guards/guard_memo.h"

#ifdef DJ_DICT_VERSIONS

enum { FEWEST_INSTRUCTIONS = 24, MAX_CHECKS_BETWEEN = 4096, PROVEN = 512 };

static GuardMemo *make_memo(Py_ssize_t n_slots)
{
    GuardMemo *memo = PyMem_Calloc(1, sizeof(GuardMemo));
    if (memo == NULL) {
        return NULL;
    }
    memo->wait = memo->pause = 1;
    memo->slots = PyMem_Calloc((size_t)n_slots + 1, sizeof(PyObject *));
    memo->blame = PyMem_Calloc((size_t)n_slots + 1, 1);
    if (memo->slots == NULL || memo->blame == NULL) {
        PyMem_Free(memo->slots);
        PyMem_Free(memo->blame);
        PyMem_Free(memo);
        return NULL;
    }
    return memo;
}

void dj_memo_passed(GuardProgram *program, PyObject *const *slots)
{
    if (program->n_instructions < FEWEST_INSTRUCTIONS) {
        return;
    }
    GuardMemo *memo = program->memo;
    if (memo == NULL) {
        program->memo = make_memo(program->n_slots);
        return;
    }
    if (memo->busy || memo->wait-- > 0) {
        return;
    }
    memo->wait = memo->pause;
    memo->pause = memo->pause < MAX_CHECKS_BETWEEN ? 2 * memo->pause : memo->pause;
    memo->armed = false;
    memo->busy = true; /* what making drops of the last memory may run Python */
    memo->proven = 0;
    bool made = dj_memo_make(program, memo, slots);
    memcpy(memo->slots, slots, (size_t)program->n_slots * sizeof(PyObject *));
    memo->armed = made;
    memo->busy = false;
}

/* ---- checking ---- */

static bool read_again(const GuardProgram *program, GuardMemo *memo, const Step *step)
{
    const Instruction *instruction = step->instruction;
    PyObject *value = dj_guard_access(program, instruction, memo->slots);
    if (value == NULL) {
        return false;
    }
    if (step->expected && value != step->object) {
        Py_DECREF(value);
        return false;
    }
    memo->slots[instruction->a] = value;
    return true;
}

/* The first word that does not hold, or the end. */
static inline const Word *first_changed(const Word *word, const Word *end)
{
    for (; word < end; word++) {
        uint64_t found;
        memcpy(&found, word->address, sizeof found);
        if ((found & word->mask) != word->expected) {
            break;
        }
    }
    return word;
}

/* What came of one check. */
typedef struct {
    bool quick;       /* no watched dictionary has changed */
    int blamed;       /* the slot that failed, or -1 */
    const Word *word; /* the word that failed, or NULL */
    int guard;        /* the guard that fails for certain, or -1 */
} Run;

static bool words_hold(GuardMemo *memo, const Step *step, Run *run)
{
    if (run->quick) {
        const Word *first = memo->quick + step->quick_first, *end = first + step->quick_count;
        if (first_changed(first, end) == end) {
            return true;
        }
    }
    const Word *first = memo->words + step->first, *end = first + step->count;
    const Word *changed = first_changed(first, end);
    if (changed == end) {
        return true;
    }
    run->word = changed;
    run->blamed = changed->slot;
    return false;
}

static bool tensors_hold(const GuardMemo *memo, const Step *step, Run *run)
{
    Py_ssize_t fits = dj_tensors_check(memo->tensors + step->first, step->count);
    if (fits == step->count) {
        return true;
    }
    run->guard = memo->tensor_leaves[step->first + fits]->guard;
    return false;
}

static inline bool step_holds(const GuardProgram *program, GuardMemo *memo, const Step *step, PyObject *const *locals,
                              Run *run)
{
    bool holds;
    switch (step->kind) {
    case STEP_LOCAL:
        holds = locals[step->slot] == step->object;
        break;
    case STEP_WORDS:
        return words_hold(memo, step, run);
    case STEP_TENSORS:
        return tensors_hold(memo, step, run);
    case STEP_READ:
        holds = read_again(program, memo, step);
        break;
    case STEP_LEAF:
        if (dj_guard_leaf(step->instruction, memo->slots)) {
            return true;
        }
        run->guard = step->instruction->guard; /* it fails whatever else has changed */
        return false;
    default:
        Py_UNREACHABLE();
    }
    if (!holds) {
        run->blamed = step->slot;
    }
    return holds;
}

static void forget(GuardMemo *memo, const Run *run)
{
    memo->armed = false;
    if (run->blamed >= 0 && memo->blame[run->blamed] < DJ_MEMO_PATIENCE && ++memo->blame[run->blamed] == DJ_MEMO_PATIENCE
        && run->word != NULL && run->word->watched) {
        dj_unwatch(dj_dict_of_version(run->word->address)); /* the words before hold, so it is alive */
    }
    if (memo->proven >= PROVEN) {
        memo->pause = 1;
        memo->wait = 0;
    }
}

/* How many steps hold. */
static Py_ssize_t run_steps(const GuardProgram *program, GuardMemo *memo, PyObject *const *locals, Run *run)
{
    const Step *step = memo->steps, *early = step + memo->n_early, *end = step + memo->n_steps;
    while (step < early && step_holds(program, memo, step, locals, run)) {
        step++;
    }
    if (step == early && early < end) {
        for (Py_ssize_t i = 0; i < memo->n_held; i++) {
            Py_INCREF(memo->slots[memo->held[i]]);
        }
        while (step < end && step_holds(program, memo, step, locals, run)) {
            step++;
        }
        for (Py_ssize_t i = 0; i < memo->n_held; i++) {
            Py_DECREF(memo->slots[memo->held[i]]);
        }
    }
    return step - memo->steps;
}

int dj_memo_check(const GuardProgram *program, PyObject *const *locals, PyObject **inputs)
{
    GuardMemo *memo = program->memo;
    if (memo == NULL || !memo->armed || memo->busy) {
        return DJ_MEMO_UNKNOWN;
    }
    memo->busy = true;
    memcpy(memo->slots, locals, (size_t)program->n_locals * sizeof(PyObject *));
    const uint64_t epoch = dj_watch_epoch;
    Run run = {.quick = memo->epoch == epoch, .blamed = -1, .guard = -1};
    Py_ssize_t done = run_steps(program, memo, locals, &run);
    bool passed = done == memo->n_steps;
    int result = DJ_MEMO_UNKNOWN;
    if (passed && inputs != NULL) {
        *inputs = dj_guard_inputs(program, memo->slots);
    }
    for (Py_ssize_t i = 0; i < done; i++) {
        if (memo->steps[i].kind == STEP_READ) {
            Py_DECREF(memo->slots[memo->steps[i].instruction->a]);
        }
    }
    if (passed) {
        memo->proven++;
        memo->epoch = epoch;
        result = inputs != NULL && *inputs == NULL ? 0 : -1;
    }
    else if (run.guard >= 0) {
        result = run.guard;
    }
    else {
        forget(memo, &run);
    }
    if (result != -1) {
        PyErr_Clear();
    }
    memo->busy = false;
    return result;
}

void dj_memo_free(GuardProgram *program)
{
    GuardMemo *memo = program->memo;
    program->memo = NULL;
    if (memo != NULL) {
        dj_memo_drop(memo);
        PyMem_Free(memo->slots);
        PyMem_Free(memo->blame);
        PyMem_Free(memo);
    }
}

PyObject *dj_memo_steps(const GuardProgram *program)
{
    static const char *const names[] = {"LOCAL", "WORDS", "TENSORS", "READ", "LEAF"};
    const GuardMemo *memo = program->memo;
    if (memo == NULL || !memo->armed) {
        Py_RETURN_NONE;
    }
    PyObject *list = PyList_New(memo->n_steps);
    for (Py_ssize_t i = 0; list != NULL && i < memo->n_steps; i++) {
        const Step *step = &memo->steps[i];
        const char *op = step->instruction != NULL ? dj_guard_op_name(step->instruction->op) : NULL;
        PyObject *item = Py_BuildValue("(szin)", names[step->kind], op, step->slot, step->count);
        if (item == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, item);
    }
    return list;
}

#else /* this CPython gives dictionaries no versions */

void dj_memo_passed(GuardProgram *program, PyObject *const *slots)
{
    (void)program;
    (void)slots;
}

int dj_memo_check(const GuardProgram *program, PyObject *const *locals, PyObject **inputs)
{
    (void)program;
    (void)locals;
    (void)inputs;
    return DJ_MEMO_UNKNOWN;
}

void dj_memo_free(GuardProgram *program)
{
    (void)program;
}

PyObject *dj_memo_steps(const GuardProgram *program)
{
    (void)program;
    Py_RETURN_NONE;
}

#endif
