/* Memory of a recorded graph that others hold between its replays: what is kept for backward, and gradients. */
#ifndef DYNAJIT_GRAPH_MEMORY_H
#define DYNAJIT_GRAPH_MEMORY_H

#include <atomic>
#include <vector>

#include <ATen/core/Tensor.h>

namespace dynajit {

class GraphMemory {
public:
    GraphMemory() = default;
    ~GraphMemory();
    GraphMemory(const GraphMemory &) = delete;
    GraphMemory &operator=(const GraphMemory &) = delete;

    void share(const at::Tensor &tensor);
    /* The run that was recorded is over: whoever holds the memory from here on has got it from a replay. */
    void settle();
    bool held() const;
    /* Memory that nobody holds may still be in use, by another stream or process, or is the graph's no more: the graph
     * may never be replayed again. */
    bool lost() const;
    void lose()
    {
        lost_ = true;
    }

private:
    struct Shared {
        at::Tensor tensor;
        void *address, *owner; /* as the allocator gave them */
        size_t holders;        /* when only the graph holds it */
    };
    std::vector<Shared> shared_;
    std::atomic<bool> lost_ = false;
};

/* Whether autograd hands what its current node gives to nodes of other streams, for which it calls recordStream itself. */
bool consumed_on_other_streams(const at::Device &device);

} // namespace dynajit

#endif
