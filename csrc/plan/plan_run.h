/* One run of a call plan, all at once or in parts. */
#ifndef DYNAJIT_PLAN_RUN_H
#define DYNAJIT_PLAN_RUN_H

#include "plan/graph_values.h"
#include "plan/plan_executor.h"

#include <memory>
#include <optional>

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace dynajit {

/* Throws the exception that Python has raised. */
[[noreturn]] void throw_python();

/* Autocast as it is inside of a compiled graph. */
class Autocast {
public:
    explicit Autocast(bool is_off)
    {
        if (is_off) {
            guard_.emplace(c10::autocast_dispatch_keyset);
        }
    }

private:
    std::optional<c10::impl::ExcludeDispatchKeyGuard> guard_;
};

/* One run of a call plan, all at once or up to some of its steps. With the GIL, which `advance` gives up meanwhile; throws
 * python_error and what operators throw. */
class PlanRun {
public:
    PlanRun(PyObject *executor, bool no_autocast, Values &&given);
    ~PlanRun();
    PlanRun(const PlanRun &) = delete;
    PlanRun &operator=(const PlanRun &) = delete;

    /* Runs the first `end` steps, as far as they have not run. */
    void advance(size_t end);
    /* What the plan gives, once all of it has run. */
    Values finish();
    Run &run()
    {
        return *run_;
    }

private:
    PyObject *executor_; /* owned */
    bool no_autocast_;
    std::unique_ptr<Run> run_;
};

} // namespace dynajit

#endif
