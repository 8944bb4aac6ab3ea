/* Memory of a recorded graph that others hold between its replays.
 *
 * In: the tensors whose storages are handed out, the same at each replay. Out: whether somebody holds one, by the count
 * of its references; and whether that count says enough. It does where the memory is used on the stream of the replays,
 * or on one that this waits for. With `record_stream` a program has the allocator wait before the memory is used again;
 * a replay can't, so that a graph whose memory it is called for is lost. */
#include "plan/graph_memory.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include <ATen/ops/record_stream_ops.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

namespace dynajit {
namespace {

std::mutex owners_lock;
std::unordered_map<const c10::StorageImpl *, GraphMemory *> owners;

/* aten::record_stream, before the device's own. */
void watch_record_stream(c10::DispatchKeySet keys, at::Tensor &self, at::Stream stream)
{
    if (self.has_storage()) {
        const std::lock_guard<std::mutex> guard(owners_lock);
        const auto found = owners.find(self.storage().unsafeGetStorageImpl());
        if (found != owners.end()) {
            found->second->lose();
        }
    }
    at::_ops::record_stream::redispatch(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect),
                                        self, stream);
}

} // namespace

GraphMemory::~GraphMemory()
{
    const std::lock_guard<std::mutex> guard(owners_lock);
    for (const Shared &each : shared_) {
        owners.erase(each.tensor.storage().unsafeGetStorageImpl());
    }
}

void GraphMemory::share(const at::Tensor &tensor)
{
    const at::DataPtr &data = tensor.storage().data_ptr();
    shared_.push_back({tensor, data.get(), data.get_context(), 0});
    const std::lock_guard<std::mutex> guard(owners_lock);
    owners[tensor.storage().unsafeGetStorageImpl()] = this;
}

void GraphMemory::settle()
{
    for (Shared &each : shared_) {
        each.holders = each.tensor.storage().use_count();
    }
}

bool GraphMemory::held() const
{
    return std::any_of(shared_.begin(), shared_.end(), [](const Shared &each) {
        return each.tensor.storage().use_count() > each.holders;
    });
}

bool GraphMemory::lost() const
{
    return lost_ || std::any_of(shared_.begin(), shared_.end(), [](const Shared &each) {
               const at::DataPtr &data = each.tensor.storage().data_ptr(); /* changed by resize_, or by another process */
               return data.get() != each.address || data.get_context() != each.owner;
           });
}

bool consumed_on_other_streams(const at::Device &device)
{
    const auto node = torch::autograd::get_current_node();
    if (!node) {
        return false;
    }
    const c10::Stream current = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    for (const torch::autograd::Edge &edge : node->next_edges()) {
        const std::optional<c10::Stream> stream = edge.is_valid() ? edge.function->stream() : std::nullopt;
        if (stream && *stream != current) {
            return true;
        }
    }
    return false;
}

} // namespace dynajit

TORCH_LIBRARY_IMPL(aten, BackendSelect, library)
{
    library.impl("record_stream", TORCH_FN(dynajit::watch_record_stream));
}
