/* One run of a call plan, all at once or in parts.
 *
 * In: a PlanExecutor, and its arguments, which are given away. Out: its results; or, where some of them are wanted before
 * all has run, the state of the run. */
#include "plan/plan_run.h"

#include <torch/csrc/Exceptions.h>

namespace dynajit {

[[noreturn]] void throw_python()
{
    python_error error;
    error.persist();
    throw std::move(error);
}

PlanRun::PlanRun(PyObject *executor, bool no_autocast, Values &&given)
    : executor_(Py_NewRef(executor)), no_autocast_(no_autocast), run_(std::make_unique<Run>(*native_plan(executor)))
{
    run_->holds_gil = true;
    try {
        take_inputs(*run_, given);
    }
    catch (const PythonError &) {
        throw_python();
    }
}

PlanRun::~PlanRun()
{
    run_.reset();
    Py_DECREF(executor_);
}

void PlanRun::advance(size_t end)
{
    const Autocast inside(no_autocast_);
    try {
        const GilReleased released;
        execute(*run_, end);
    }
    catch (const PythonError &) {
        throw_python();
    }
}

Values PlanRun::finish()
{
    advance(SIZE_MAX);
    Values results;
    results.reserve(run_->plan.outputs.size());
    for (const Output &output : run_->plan.outputs) {
        if (output.slot < -1) {
            PyObject *number = number_of(*run_, output);
            results.emplace_back(number);
            Py_XDECREF(number);
            continue;
        }
        const Slot *slot = output.slot >= 0 ? &run_->slots[static_cast<size_t>(output.slot)] : nullptr;
        if (slot != nullptr && slot->tensor.defined()) {
            results.emplace_back(slot->tensor);
        }
        else {
            PyObject *object = slot != nullptr ? slot->object : output.object;
            results.emplace_back(object != nullptr ? object : Py_None);
        }
    }
    return results;
}

} // namespace dynajit
