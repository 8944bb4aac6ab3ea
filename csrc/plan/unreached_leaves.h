/* A backward pass leaves out leaves of which none of the results that it starts from depends.
 *
 * A compiled graph is one node of autograd's for several results, so the engine comes to all leaves behind the node, with no
 * gradient for some. Accumulation takes that as nothing, but a hook that a leaf has got since the graph was called would be
 * called with None, where eager's pass never comes to the leaf. In: the node, and which of its edges lead to such leaves.
 * Out: the engine's count of what the leaf waits for is one less, and the edge is gone until the pass ends. Of
 * `training_node.h` alone. */
#ifndef DYNAJIT_UNREACHED_LEAVES_H
#define DYNAJIT_UNREACHED_LEAVES_H

#include "plan/training_graph.h"

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

namespace {

/* The backward pass of this thread, of which torch hands out one member. */
torch::autograd::GraphTask *current_pass()
{
    using torch::autograd::GraphTask;
    const auto *member = torch::autograd::get_current_graph_task_nodes_in_graph();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
    constexpr std::size_t place = offsetof(GraphTask, nodes_in_graph_);
#pragma GCC diagnostic pop
    return member == nullptr ? nullptr : reinterpret_cast<GraphTask *>(reinterpret_cast<std::uintptr_t>(member) - place);
}

bool is_leaf_with_hooks(const torch::autograd::Edge &edge)
{
    auto *leaf = dynamic_cast<torch::autograd::AccumulateGrad *>(edge.function.get());
    return leaf != nullptr && (!leaf->tensor_pre_hooks().empty() || !leaf->pre_hooks().empty() || !leaf->post_hooks().empty());
}

/* Edges that are gone while a pass runs, and come back with it: also where it raises. */
class EdgesLeftOut {
public:
    EdgesLeftOut() = default;
    EdgesLeftOut(const EdgesLeftOut &) = delete;
    EdgesLeftOut &operator=(const EdgesLeftOut &) = delete;

    ~EdgesLeftOut()
    {
        put_back();
    }

    /* Leave the edge out, unless something else has given its leaf a gradient, which is ready when this node has run. */
    void leave_out(torch::autograd::GraphTask &pass, torch::autograd::Node *node, size_t place)
    {
        torch::autograd::Edge &edge = node->next_edges().at(place);
        const std::lock_guard<std::mutex> lock(pass.mutex_);
        const auto waits = pass.dependencies_.find(edge.function.get());
        const bool is_last = waits != pass.dependencies_.end() && waits->second == 1;
        if (waits == pass.dependencies_.end() || (is_last && pass.not_ready_.count(edge.function.get()) != 0)) {
            return;
        }
        if (is_last) {
            pass.nodes_in_graph_.erase(edge.function.get()); /* hooks of several tensors ask which of these will be called */
            pass.dependencies_.erase(waits);
        }
        else {
            waits->second--;
        }
        edges_.push_back({another_to(node), place, std::exchange(edge, torch::autograd::Edge())});
    }

    void put_back()
    {
        for (LeftOut &each : edges_) {
            each.node->next_edges().at(each.place) = std::move(each.edge);
        }
        edges_.clear();
    }

    bool empty() const
    {
        return edges_.empty();
    }

private:
    struct LeftOut {
        NodePointer node;
        size_t place;
        torch::autograd::Edge edge;
    };
    std::vector<LeftOut> edges_;
};

/* `edges`: nodes of one graph, each with the place of an edge that this pass has no gradient for. */
void leave_out_leaves(const std::vector<std::pair<torch::autograd::Node *, size_t>> &edges)
{
    torch::autograd::GraphTask *pass = edges.empty() ? nullptr : current_pass();
    if (pass == nullptr) {
        return;
    }
    const auto gone = std::make_shared<EdgesLeftOut>();
    for (const auto &[node, place] : edges) {
        gone->leave_out(*pass, node, place);
    }
    if (!gone->empty()) {
        torch::autograd::Engine::get_default_engine().queue_callback([gone] { gone->put_back(); });
    }
}

} // namespace

#endif
