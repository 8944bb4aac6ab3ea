/* The CUDA driver, opened when it is first needed: the extension is built without CUDA. */
#ifndef DYNAJIT_CUDA_DRIVER_H
#define DYNAJIT_CUDA_DRIVER_H

#include "python/objects.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include <c10/core/Device.h>

namespace dynajit {

/* The driver's types and numbers, as its documentation gives them. */
using CuResult = int;
using CuFunction = void *;
using CuModule = void *;
using CuStream = void *;
using CuGraphNode = void *;
using CuGraphExec = void *;
using CuPointer = uint64_t;

constexpr CuResult kCuSuccess = 0;
constexpr CuResult kCuInvalidContext = 201;
constexpr int kCuCaptureActive = 1;
constexpr int kCuMaxDynamicShared = 8;
constexpr int kCuMemoryDevice = 2;
constexpr unsigned kCuReplaceLatest = 1;

struct CuKernelNodeParams {
    CuFunction function;
    unsigned grid[3];
    unsigned block[3];
    unsigned shared;
    void **params;
    void **extra;
    void *kernel;
    void *context;
};

struct CuMemcpy3D {
    size_t src_x, src_y, src_z, src_lod;
    int src_type;
    const void *src_host;
    CuPointer src;
    void *src_array;
    void *reserved0;
    size_t src_pitch, src_height;
    size_t dst_x, dst_y, dst_z, dst_lod;
    int dst_type;
    void *dst_host;
    CuPointer dst;
    void *dst_array;
    void *reserved1;
    size_t dst_pitch, dst_height;
    size_t width, height, depth;
};

/* A launch with one attribute: number 6, the kernel may start before the one before it has ended. */
struct CuLaunchAttribute {
    int id;
    char pad[4];
    int value;
    char rest[60];
};

struct CuLaunchConfig {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared;
    CuStream stream;
    CuLaunchAttribute *attributes;
    unsigned count;
};

constexpr int kCuEarlyStart = 6;

struct CudaDriver {
    CuResult (*module_load)(CuModule *, const void *);
    CuResult (*module_unload)(CuModule);
    CuResult (*module_function)(CuFunction *, CuModule, const char *);
    CuResult (*function_attribute)(CuFunction, int, int);
    CuResult (*launch)(CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CuStream, void **,
                       void **);
    CuResult (*error_string)(CuResult, const char **);
    CuResult (*capture_info)(CuStream, int *, uint64_t *, void **, const CuGraphNode **, size_t *);
    /* These three are null where the driver is older than they are. */
    CuResult (*set_latest)(CuStream, CuGraphNode *, size_t, unsigned);
    CuResult (*launch_with)(const CuLaunchConfig *, CuFunction, void **, void **);
    CuResult (*capture_info_3)(CuStream, int *, uint64_t *, void **, const CuGraphNode **, const void **, size_t *);
    CuResult (*set_kernel_node)(CuGraphExec, CuGraphNode, const CuKernelNodeParams *);
    CuResult (*set_memcpy_node)(CuGraphExec, CuGraphNode, const CuMemcpy3D *, void *);
    CuResult (*copy_async)(CuPointer, CuPointer, size_t, CuStream);
    CuResult (*graph_launch)(CuGraphExec, CuStream);
    CuResult (*current_context)(void **);
    CuResult (*set_context)(void *);
};

/* An error of the driver's; becomes RuntimeError. */
struct CudaError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/* Throws CudaError if there is no driver. */
const CudaDriver &cuda_driver();
void cuda_check(CuResult result, const char *what);

/* A loaded kernel, in two versions: one for addresses that are multiples of 16, and one for any, made when needed. */
struct GpuKernel {
    CuFunction function = nullptr;
    CuFunction unaligned = nullptr;
    unsigned shared = 0, threads = 0;
    unsigned unaligned_shared = 0, unaligned_threads = 0;
    bool early = false;                 /* it waits by itself for the kernel before it */
    unsigned scratch = 0;               /* bytes of device memory for each program; the unaligned version takes none */
    void *context = nullptr;            /* that it was loaded into */
    PyObject *make_unaligned = nullptr; /* () -> (cubin, symbol, shared, threads) */
    std::vector<CuModule> modules;
};

bool is_gpu_kernel(PyObject *object);
GpuKernel *gpu_kernel(PyObject *object);
/* Puts one version of the kernel on the stream. */
CuResult launch_kernel(const GpuKernel &kernel, CuFunction function, unsigned programs, unsigned threads, unsigned shared,
                       CuStream stream, void **params);
/* What comes next on a captured stream waits for these; `latest_node`: for this one alone. They throw. */
std::vector<CuGraphNode> latest_nodes(CuStream stream);
CuGraphNode latest_node(CuStream stream);
/* What comes next waits for these from now on. */
void follow(CuStream stream, std::vector<CuGraphNode> &nodes);
/* Takes the GIL. Throws. */
void load_unaligned(GpuKernel *kernel);
/* A generator's seed, its offset, and where what is added to either lies, as addresses (null: nothing is), from before it
 * moves on by so much. Throws where torch has no generator for the device. */
std::array<char *, 4> drawn_state(c10::Device device, int64_t increment);

} // namespace dynajit

#endif
