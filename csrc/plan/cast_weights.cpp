/* Weights that compiled graphs have cast inside of an autocast region.
 *
 * Autocast casts each weight once: until the outermost region ends, operators get the first cast, with the history that it
 * has, whatever is written to the weight meanwhile. A compiled graph has casts of its own, fused with what they are for. As
 * long as nothing is written these are the same numbers, and casts made for autocast beside them would be for nothing. So
 * only what was cast is noted here: the weight, how often it had been written, and the grad mode.
 *
 * In: the weights of a graph at each call; that a backward pass begins. Out: whether the graph may go on with casts of its
 * own. A backward pass inside of the region, as before the update of a training step, has the casts made for autocast from
 * then on. Not known are writes to a weight that no such pass has come before. */
#include "plan/cast_weights.h"

#include <atomic>
#include <mutex>
#include <unordered_map>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/variable.h>

namespace {

struct Cast {
    c10::weak_intrusive_ptr<c10::TensorImpl> weight;
    uint32_t version;
    const void *data;
    at::ScalarType dtype; /* that it was cast to */
    bool has_history;
    bool is_kept; /* by autocast, too */

    Cast(const at::Tensor &tensor, bool is_kept)
        : weight(tensor.getIntrusivePtr()), version(tensor._version()), data(tensor.const_data_ptr()),
          dtype(at::autocast::get_autocast_dtype(tensor.device().type())), has_history(at::GradMode::is_enabled()),
          is_kept(is_kept)
    {
    }

    bool is_of(const at::Tensor &tensor) const
    {
        return tensor._version() == version && tensor.const_data_ptr() == data;
    }

    /* Have autocast cast the weight, as it would have then. */
    void keep(const at::Tensor &tensor)
    {
        const at::AutoGradMode mode(has_history);
        const c10::DeviceType device = tensor.device().type();
        const at::ScalarType dtype_now = at::autocast::get_autocast_dtype(device);
        const bool is_enabled = at::autocast::is_autocast_cache_enabled();
        at::autocast::set_autocast_dtype(device, dtype); /* a thread of the engine's has its own */
        at::autocast::set_autocast_cache_enabled(true);
        at::autocast::cached_cast(dtype, tensor, device);
        at::autocast::set_autocast_cache_enabled(is_enabled);
        at::autocast::set_autocast_dtype(device, dtype_now);
        is_kept = true;
    }
};

std::mutex mutex;
std::unordered_map<const c10::TensorImpl *, Cast> casts; /* of the region at hand */
std::atomic<bool> any_casts = false;

/* Forget what was cast in other regions. When one ends torch drops all casts that it keeps: if it still has that of a weight
 * of ours, none has ended. */
void enter_region()
{
    const c10::InferenceMode usual(false);
    static const at::Tensor &weight = *new at::Tensor(at::zeros({}, at::kFloat).requires_grad_(true));
    static at::Tensor &last = *new at::Tensor(); /* both outlive torch */
    const at::ScalarType dtype = at::autocast::get_autocast_dtype(at::kCPU);
    at::Tensor cast = at::autocast::cached_cast(dtype, weight, at::kCPU);
    if (!cast.is_same(last)) {
        casts.clear();
        last = std::move(cast);
    }
}

/* Whether autocast keeps a cast of the tensor. */
bool is_cast_once(const at::Tensor &tensor)
{
    return tensor.scalar_type() == at::kFloat && tensor.requires_grad() && tensor.is_leaf() && !tensor.is_view()
        && !tensor.is_inference() && tensor.has_storage();
}

} // namespace

bool dynajit::goes_on_with_casts(const std::vector<at::Tensor> &weights, bool eager)
{
    if (!at::autocast::is_autocast_cache_enabled()) {
        return false;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    enter_region();
    std::vector<std::pair<const at::Tensor *, Cast *>> seen;
    bool others = false;
    for (const at::Tensor &weight : weights) {
        if (!is_cast_once(weight)) {
            continue;
        }
        const auto [found, is_new] = casts.try_emplace(weight.unsafeGetTensorImpl(), weight, false);
        Cast &cast = found->second;
        const bool is_lost = !cast.is_of(weight) && !cast.is_kept;
        if (!is_new && (cast.weight.expired() || is_lost)) {
            cast = Cast(weight, false);
        }
        seen.emplace_back(&weight, &cast);
        others = others || !cast.is_of(weight) || (!cast.has_history && at::GradMode::is_enabled());
    }
    any_casts = !casts.empty();
    for (const auto &[weight, cast] : seen) {
        if (others && !cast->is_kept) {
            cast->keep(*weight);
        }
        cast->is_kept = cast->is_kept || eager;
    }
    return others;
}

void dynajit::keep_casts()
{
    if (!any_casts) {
        return;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    enter_region();
    for (auto &[impl, cast] : casts) {
        const auto weight = cast.weight.lock();
        const at::Tensor tensor = weight ? at::Tensor(weight) : at::Tensor();
        if (tensor.defined() && !cast.is_kept && cast.is_of(tensor)) {
            cast.keep(tensor);
        }
    }
    any_casts = !casts.empty();
}
