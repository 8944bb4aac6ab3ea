/* dynajit::kept, an operator: a tensor as it is now, in memory that is copied when somebody writes to one of the two.
 *
 * In: a CPU tensor that the program will hold as well. Out: another one with its values and strides, which backward keeps.
 * torch's storages do the copying: whoever asks one for memory to write gets memory of its own. */
#include "plan/plan_executor.h"

#include <ATen/ops/copy.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/COW.h>
#include <torch/library.h>

namespace dynajit {

void own_memory(const at::Tensor &tensor)
{
    if (tensor.defined() && tensor.has_storage()
        && c10::impl::cow::is_cow_data_ptr(tensor.storage().unsafeGetStorageImpl()->data_ptr())) {
        tensor.storage().unsafeGetStorageImpl()->mutable_data();
    }
}

namespace {

at::Tensor kept(const at::Tensor &tensor)
{
    c10::intrusive_ptr<c10::StorageImpl> storage;
    if (tensor.nbytes() * 2 > tensor.storage().nbytes()) { /* else most of it would live on for nothing */
        storage = c10::impl::cow::lazy_clone_storage(*tensor.storage().unsafeGetStorageImpl());
    }
    if (storage == nullptr) { /* memory that is not an allocator's */
        return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor);
    }
    at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), tensor.key_set(),
                                                               tensor.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    return made;
}

at::Tensor kept_meta(const at::Tensor &tensor)
{
    return at::empty_strided_symint(tensor.sym_sizes(), tensor.sym_strides(), tensor.options());
}

} // namespace

TORCH_LIBRARY(dynajit, library)
{
    library.def("kept(Tensor tensor) -> Tensor");
    library.impl("kept", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(kept)));
    library.impl("kept", torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(kept_meta)));
}

} // namespace dynajit
