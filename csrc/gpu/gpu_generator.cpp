/* The state of torch's generator of a GPU, for kernels that draw random numbers themselves.
 *
 * In: a device, and how far its generator is to move on. Out: its seed and offset from before, or, while a CUDA graph is
 * recorded, where torch puts them at each replay. */
#include "gpu/cuda_driver.h"

#include <dlfcn.h>

#include <ATen/Context.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

namespace dynajit {
namespace {

/* CUDAGeneratorImpl::philox_cuda_state, of a library that is there only where torch was built for CUDA. */
using PhiloxState = at::PhiloxCudaState (*)(at::CUDAGeneratorImpl *, uint64_t);

PhiloxState philox_state()
{
    void *library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    void *found = library != nullptr ? dlsym(library, "_ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm") : nullptr;
    if (found == nullptr) {
        throw std::runtime_error("this torch has no random numbers for GPUs");
    }
    return reinterpret_cast<PhiloxState>(found);
}

} // namespace

/* the check of the cast asks for CUDAGeneratorImpl's type information, which a torch without CUDA lacks */
__attribute__((no_sanitize("vptr"))) std::array<char *, 4> drawn_state(c10::Device device, int64_t increment)
{
    static const PhiloxState of = philox_state();
    at::Generator generator = at::globalContext().defaultGenerator(device);
    at::PhiloxCudaState state;
    {
        std::lock_guard<std::mutex> lock(generator.mutex());
        state = of(static_cast<at::CUDAGeneratorImpl *>(generator.unsafeGetGeneratorImpl()),
                   static_cast<uint64_t>(increment));
    }
    if (state.captured_) {
        return {nullptr, reinterpret_cast<char *>(state.offset_intragraph_), reinterpret_cast<char *>(state.seed_.ptr),
                reinterpret_cast<char *>(state.offset_.ptr)};
    }
    return {reinterpret_cast<char *>(state.seed_.val), reinterpret_cast<char *>(state.offset_.val), nullptr, nullptr};
}

} // namespace dynajit
