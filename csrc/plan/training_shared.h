/* What the nodes of one call of a compiled graph share.
 *
 * In: what the call has saved for backward. Out: for each backward pass, what it finds used up, and what one of the nodes
 * has computed for the others. Of `training_node.h` alone. */
#ifndef DYNAJIT_TRAINING_SHARED_H
#define DYNAJIT_TRAINING_SHARED_H

#include "plan/training_graph.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>

namespace {

class Backward;

/* What the nodes of one call share: what backward needs, and how far the pass is that runs now.
 *
 * The first node that computes does so for all of them, from the gradients of all results that this pass has given. */
struct Shared {
    explicit Shared(const TrainingCall *call) : call(call), used_up(call->saving->size(), -1)
    {
    }

    const TrainingCall *call;
    std::vector<int> used_up; /* of each of the call's `saving`: the pass that used it up, -1: none did */
    std::vector<Backward *> nodes;                /* of each group; nullptr: it is gone */
    std::vector<torch::autograd::Node *> passing; /* of each result, where there are several; nullptr: it is gone */
    int pass = -1;
    Flags passed;            /* results whose own nodes have run in this pass */
    Flags given;             /* those that have a gradient */
    variable_list gradients; /* theirs, until none is awaited any more and a node computes */
    Flags started_from;      /* the results that `found` was computed from; empty: nothing was */
    variable_list found;     /* for nodes that have not run yet */

    std::vector<SavedVariable> saved;
    std::vector<int64_t> saved_versions;
    variable_list kept;
    std::vector<bool> order; /* whether each saved tensor is in saved or in kept */
    std::shared_ptr<GraphInputs> inputs; /* nullptr: backward can't be differentiated again */
    bool is_cleared = false;

    /* One of the results has been given a gradient, or none, by this pass. */
    void pass_by(size_t number, const at::Tensor &gradient)
    {
        begin();
        passed[number] = true;
        given[number] = gradient.defined();
        gradients[number] = gradient;
    }

    variable_list take_gradients()
    {
        return awaits_any() ? gradients : std::exchange(gradients, variable_list(passing.size()));
    }

    void begin()
    {
        const int current = torch::autograd::get_current_graph_task_id();
        if (current != pass) {
            pass = current;
            passed.assign(passing.size(), false);
            given.assign(passing.size(), false);
            gradients.assign(passing.size(), at::Tensor());
            started_from.clear();
            found.clear();
        }
    }

    /* Whether this pass has yet to come by a result. */
    bool awaits_any() const
    {
        const auto *in_pass = torch::autograd::get_current_graph_task_nodes_in_graph();
        const auto *asked = torch::autograd::get_current_graph_task_exec_info();
        for (size_t i = 0; in_pass != nullptr && i < passing.size(); i++) {
            if (passing[i] != nullptr && !passed[i] && in_pass->count(passing[i]) != 0 && is_asked(asked, passing[i])) {
                return true;
            }
        }
        return false;
    }

    /* Whether what was found is of all results that this pass comes by. */
    bool has_found_all() const
    {
        return started_from == given && !awaits_any();
    }

    /* Let go of what backward needs. */
    void clear()
    {
        saved.clear();
        kept.clear();
        inputs.reset();
        is_cleared = true;
    }

    /* Whether eager's pass that gives these results gradients goes through operations that keep tensors. needed: as of
     * `Backward`. */
    bool is_run(const Saving &saving, const Flags &starts, const Flags &needed) const
    {
        bool is_behind = false;
        for (size_t i = 0; i < starts.size(); i++) {
            if (starts[i] && saving.own[i]) {
                return true;
            }
            is_behind = is_behind || (starts[i] && saving.results[i]);
        }
        const auto *asked = torch::autograd::get_current_graph_task_exec_info();
        bool leads_on = needed.empty();
        for (size_t i = 0; i < passing.size() && is_behind && !leads_on; i++) {
            leads_on = saving.through[i] && passing[i] != nullptr && is_asked(asked, passing[i]);
        }
        for (size_t i = 0; i < needed.size() && is_behind && !leads_on; i++) {
            leads_on = needed[i] && saving.inputs[i];
        }
        return is_behind && leads_on;
    }

    void use_up(const Flags &starts, const Flags &needed)
    {
        const int current = torch::autograd::get_current_graph_task_id();
        for (size_t i = 0; i < used_up.size(); i++) {
            used_up[i] = used_up[i] == -1 && is_run((*call->saving)[i], starts, needed) ? current : used_up[i];
        }
    }

    /* Raise as torch does where another pass has used up what this one goes through. */
    void refuse_used_up(const Flags &starts, const Flags &needed) const
    {
        refuse_gone([&](const Saving &saving) { return is_run(saving, starts, needed); });
    }

    /* The same for the operation that gave a result, which runs wherever a pass comes by that. */
    void refuse_used_up(size_t number) const
    {
        refuse_gone([&](const Saving &saving) { return saving.own[number]; });
    }

    void use_up(size_t number)
    {
        for (size_t i = 0; i < used_up.size(); i++) {
            used_up[i] = (*call->saving)[i].own[number] ? torch::autograd::get_current_graph_task_id() : used_up[i];
        }
    }

    bool is_all_used_up() const
    {
        return call->can_be_used_up && std::find(used_up.begin(), used_up.end(), -1) == used_up.end();
    }

private:
    template <typename Runs> void refuse_gone(Runs &&runs) const
    {
        for (size_t i = 0; i < used_up.size(); i++) {
            const bool is_gone = used_up[i] != -1 && used_up[i] != torch::autograd::get_current_graph_task_id();
            if (is_gone && runs((*call->saving)[i])) {
                throw std::runtime_error(torch::autograd::ERR_BACKWARD_TWICE);
            }
        }
    }
};

/* The same but for the order in which a library's kernel adds up, in parts of the largest element. */
inline bool is_close(const at::Tensor &before, const at::Tensor &made)
{
    at::AutoGradMode no_grad(false);
    if (before.sizes() != made.sizes()) {
        return false;
    }
    if (before.is_alias_of(made) || before.numel() == 0) {
        return true;
    }
    if (before.element_size() == 1) { /* there are floats of one byte that nothing compares */
        return at::equal(before.view(at::kByte), made.view(at::kByte));
    }
    if (!at::isFloatingType(before.scalar_type()) && !at::isComplexType(before.scalar_type())) {
        return at::equal(before, made);
    }
    const double largest = before.abs().nan_to_num(0, 0, 0).max().item<double>();
    return at::allclose(before, made, 1e-3, 1e-5 * (1 + largest), /*equal_nan=*/true);
}

} // namespace

#endif
