/* In which order autograd's engine runs the nodes that are ready, and how a node's gradients arrive in a given one.
 *
 * In: nodes with their priorities and what they lead to, or the edges of one node. Out: the order in which a pass comes by
 * the leaves, and the order in which one node has to hand its gradients out. Of `training_parts.h` and `training_call.cpp`. */
#ifndef DYNAJIT_TRAINING_ORDER_H
#define DYNAJIT_TRAINING_ORDER_H

#include <algorithm>
#include <cstdint>
#include <queue>
#include <vector>

#include <torch/csrc/autograd/function.h>

namespace {

/* A node that is ready, as the engine's queue has it: among equal ones its order is that of the library's heap. */
struct Ready {
    uint64_t priority;
    size_t number;

    bool operator<(const Ready &other) const
    {
        return priority < other.priority;
    }
};

using ReadyQueue = std::priority_queue<Ready>;

size_t next_of(ReadyQueue &queue)
{
    const size_t number = queue.top().number;
    queue.pop();
    return number;
}

/* The nodes that lead to nothing, in the order in which a pass from `starts` comes by them. */
std::vector<size_t> order_of_ends(const std::vector<uint64_t> &priorities, const std::vector<std::vector<size_t>> &following,
                                  const std::vector<size_t> &starts)
{
    std::vector<size_t> awaited(priorities.size(), 0), ends;
    ReadyQueue queue;
    const auto come_by = [&](const std::vector<size_t> &nodes) {
        for (size_t node : nodes) {
            if (--awaited[node] == 0) {
                queue.push({priorities[node], node});
            }
        }
    };
    for (const std::vector<size_t> &nodes : following) {
        for (size_t node : nodes) {
            awaited[node]++;
        }
    }
    for (size_t node : starts) {
        awaited[node]++;
    }
    come_by(starts);
    while (!queue.empty()) {
        const size_t node = next_of(queue);
        if (following[node].empty()) {
            ends.push_back(node);
        }
        come_by(following[node]);
    }
    return ends;
}

/* `places`, numbers of edges of a node, in the order in which it has to have them for the engine to run what they lead to
 * as it stands here. `next`: a node that an edge after these leads to, or nullptr. waiting: priorities of nodes that are
 * ready meanwhile. */
void have_arrive(std::vector<size_t> &places, const torch::autograd::edge_list &edges, const torch::autograd::Node *next,
                 const std::vector<uint64_t> &waiting)
{
    const auto priority = [&](size_t place) { return edges[place].function->sequence_nr(); };
    const auto is_first = [&](size_t place) { return priority(place) == UINT64_MAX; }; /* a leaf */
    const auto rest = std::stable_partition(places.begin(), places.end(), is_first);
    const std::vector<size_t> leaves(places.begin(), rest);
    ReadyQueue queue;
    for (uint64_t lower : waiting) {
        queue.push({lower, places.size()});
    }
    for (size_t i = 0; i < places.size(); i++) {
        queue.push({priority(places[i]), i});
    }
    if (next != nullptr) {
        queue.push({next->sequence_nr(), places.size()});
    }
    for (size_t leaf : leaves) {
        places[next_of(queue)] = leaf;
    }
}

} // namespace

#endif
