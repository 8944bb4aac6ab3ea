/* Autograd's nodes of one result each, before the node of the graph that gave several.
 *
 * In: the gradient of the result. Out: the same for the graph's node; and, where the result was computed from other
 * results that somebody hears of, what is theirs of it. Of `training_call.cpp` alone. */
#ifndef DYNAJIT_TRAINING_RESULTS_H
#define DYNAJIT_TRAINING_RESULTS_H

#include "plan/training_node.h"

#include <memory>
#include <utility>
#include <vector>

namespace {

/* The result's hooks run where a backward pass comes by it, not wherever one comes by another. The first edges lead to
 * the graph's nodes, the others to those of the results `links`. */
class Passing : public Named {
public:
    Passing(Backward *graph, size_t number, const std::shared_ptr<InnerResults> &inner, const TrainingCall *call,
            const std::shared_ptr<Shared> &shared)
        : Named(BACKWARD_NAME), graph_(graph), number_(number), inner_(inner), shared_(shared)
    {
        shared_->passing[number] = this;
        if (inner_ != nullptr) {
            inner_->nodes[number] = this;
            through_ = (*call->through)[number];
            links_ = (*call->links)[number];
        }
    }

    ~Passing() override
    {
        shared_->passing[number_] = nullptr;
        if (inner_ != nullptr) {
            inner_->nodes[number_] = nullptr;
        }
    }

    Passing(const Passing &) = delete;
    Passing &operator=(const Passing &) = delete;

    variable_list apply(variable_list &&given) override
    {
        const pybind11::gil_scoped_acquire gil;
        ran_in_ = torch::autograd::get_current_graph_task_id();
        shared_->refuse_used_up(number_);
        variable_list found(n_graph_, given.at(0));
        found.resize(num_outputs());
        shared_->pass_by(number_, given.at(0));
        if (found.size() == 1 && call()->groups->size() == 1) {
            shared_->gradients[number_].reset(); /* the graph's only node is given it */
            return found;
        }
        given.clear();
        if (found.size() == n_graph_) {
            return found;
        }
        inner_->begin();
        if (found.at(0).defined() && inner_->any_heard(through_)) {
            graph_->hand_to_inner(number_, found[0]);
        }
        for (size_t i = 0; i < links_.size(); i++) {
            found.at(n_graph_ + i) = std::exchange(inner_->waiting.at(links_[i]), at::Tensor());
        }
        return found;
    }

    void release_variables() override
    {
        const int pass = torch::autograd::get_current_graph_task_id();
        if (pass != -1 && pass == ran_in_) { /* else the node dies */
            const pybind11::gil_scoped_acquire gil;
            shared_->use_up(number_);
        }
    }

    /* Edges to the graph's nodes, and to those of the results that are linked. A result that was computed from views gets
     * the latter when these are there: once another node leads to one, its own edges stay as they are. */
    void lead_to(torch::autograd::edge_list &&graph)
    {
        n_graph_ = graph.size();
        for (torch::autograd::Edge &edge : graph) {
            add_next_edge(std::move(edge));
        }
        if (!is_of_views()) {
            lead_to_links({});
        }
    }

    void lead_to_views(const variable_list &views)
    {
        if (!is_of_views() || num_outputs() != n_graph_ || through_.size() != inner_->nodes.size() + views.size()) {
            return;
        }
        if (inner_->views.empty()) {
            for (const at::Tensor &view : views) {
                inner_->views.push_back(weak(view.grad_fn()));
            }
        }
        lead_to_links(views);
    }

    const TrainingCall *call() const
    {
        return graph_->call();
    }

    size_t number() const
    {
        return number_;
    }

private:
    bool is_of_views() const
    {
        const size_t count = inner_ != nullptr ? inner_->nodes.size() : 0;
        return std::find(through_.begin() + static_cast<std::ptrdiff_t>(count), through_.end(), true) != through_.end();
    }

    void lead_to_links(const variable_list &views)
    {
        const size_t count = inner_ != nullptr ? inner_->nodes.size() : 0;
        for (size_t link : links_) {
            torch::autograd::Node *node = link < count ? inner_->nodes[link] : nullptr;
            add_next_edge(link >= count     ? torch::autograd::impl::gradient_edge(views[link - count])
                          : node == nullptr ? torch::autograd::Edge()
                                            : torch::autograd::Edge(another_to(node), 0));
        }
    }

    Backward *graph_; /* the first edge holds it */
    size_t number_;
    int ran_in_ = -1;    /* the last pass */
    size_t n_graph_ = 0; /* the first edges, which lead to the graph's nodes */
    std::shared_ptr<InnerResults> inner_; /* nullptr: no result was computed from another one */
    std::shared_ptr<Shared> shared_;
    std::vector<size_t> links_;
    Flags through_;
};

} // namespace

#endif
