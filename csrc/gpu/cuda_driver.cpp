/* The CUDA driver's functions, and GpuKernel: machine code loaded through it.
 *
 * In: a cubin, the name of a kernel in it, its shared memory and threads. Out: an object that plans launch. */
#include "gpu/cuda_driver.h"
#include "python/heap_type.h"

#include <dlfcn.h>

#include <mutex>
#include <string>

namespace dynajit {
namespace {

CudaDriver driver;
bool driver_is_open = false;
std::mutex driver_mutex;
PyTypeObject *kernel_type;

struct KernelObject {
    PyObject_HEAD
    GpuKernel *kernel;
};

template <typename Function>
void resolve(void *library, const char *name, Function *&target)
{
    target = reinterpret_cast<Function *>(dlsym(library, name));
    if (target == nullptr) {
        throw CudaError(std::string("the CUDA driver is too old: it has no ") + name);
    }
}

void open_driver(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        throw CudaError(std::string("no CUDA driver: ") + dlerror());
    }
    CudaDriver found{};
    resolve(library, "cuModuleLoadData", found.module_load);
    resolve(library, "cuModuleUnload", found.module_unload);
    resolve(library, "cuModuleGetFunction", found.module_function);
    resolve(library, "cuFuncSetAttribute", found.function_attribute);
    resolve(library, "cuLaunchKernel", found.launch);
    resolve(library, "cuGetErrorString", found.error_string);
    resolve(library, "cuStreamGetCaptureInfo_v2", found.capture_info);
    resolve(library, "cuGraphExecKernelNodeSetParams_v2", found.set_kernel_node);
    resolve(library, "cuGraphExecMemcpyNodeSetParams", found.set_memcpy_node);
    resolve(library, "cuMemcpyDtoDAsync_v2", found.copy_async);
    resolve(library, "cuGraphLaunch", found.graph_launch);
    resolve(library, "cuCtxGetCurrent", found.current_context);
    resolve(library, "cuCtxSetCurrent", found.set_context);
    found.launch_with = reinterpret_cast<decltype(found.launch_with)>(dlsym(library, "cuLaunchKernelEx"));
    found.capture_info_3 = reinterpret_cast<decltype(found.capture_info_3)>(dlsym(library, "cuStreamGetCaptureInfo_v3"));
    found.set_latest = reinterpret_cast<decltype(found.set_latest)>(dlsym(library, "cuStreamUpdateCaptureDependencies"));
    driver = found;
    driver_is_open = true;
}

CuFunction load_function(GpuKernel *kernel, const char *cubin, const char *symbol, unsigned shared)
{
    const CudaDriver &cuda = cuda_driver();
    CuModule module = nullptr;
    cuda_check(cuda.module_load(&module, cubin), "loading a kernel");
    cuda_check(cuda.current_context(&kernel->context), "loading a kernel");
    kernel->modules.push_back(module);
    CuFunction function = nullptr;
    cuda_check(cuda.module_function(&function, module, symbol), "finding a kernel");
    if (shared > 48 * 1024) {
        cuda_check(cuda.function_attribute(function, kCuMaxDynamicShared, static_cast<int>(shared)),
                   "reserving a kernel's shared memory");
    }
    return function;
}

PyObject *kernel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const char *names[] = {"cubin", "symbol", "shared", "threads", "make_unaligned", "scratch", "early", nullptr};
    const char *cubin, *symbol;
    int early = 0;
    unsigned shared, threads, scratch = 0;
    PyObject *make_unaligned = Py_None;
    Py_ssize_t length;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#sII|OIp:GpuKernel", const_cast<char **>(names), &cubin, &length,
                                     &symbol, &shared, &threads, &make_unaligned, &scratch, &early)) {
        return nullptr;
    }
    KernelObject *self = reinterpret_cast<KernelObject *>(type->tp_alloc(type, 0));
    if (self == nullptr) {
        return nullptr;
    }
    try {
        self->kernel = new GpuKernel;
        self->kernel->function = load_function(self->kernel, cubin, symbol, shared);
        self->kernel->shared = shared;
        self->kernel->threads = threads;
        self->kernel->scratch = scratch;
        self->kernel->early = early != 0;
        self->kernel->make_unaligned = make_unaligned == Py_None ? nullptr : Py_NewRef(make_unaligned);
    }
    catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        Py_CLEAR(self);
    }
    return reinterpret_cast<PyObject *>(self);
}

int kernel_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    GpuKernel *kernel = reinterpret_cast<KernelObject *>(object)->kernel;
    if (kernel != nullptr) {
        Py_VISIT(kernel->make_unaligned);
    }
    return 0;
}

int kernel_clear(PyObject *object)
{
    GpuKernel *kernel = reinterpret_cast<KernelObject *>(object)->kernel;
    if (kernel != nullptr) {
        Py_CLEAR(kernel->make_unaligned);
    }
    return 0;
}

void kernel_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    kernel_clear(object);
    GpuKernel *kernel = reinterpret_cast<KernelObject *>(object)->kernel;
    if (kernel != nullptr) {
        for (CuModule module : kernel->modules) {
            driver.module_unload(module); /* fails while the process ends, which is fine */
        }
        delete kernel;
    }
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject *open_driver_at(PyObject *, PyObject *path)
{
    const char *text = PyUnicode_AsUTF8(path);
    if (text == nullptr) {
        return nullptr;
    }
    try {
        std::lock_guard<std::mutex> lock(driver_mutex);
        open_driver(text);
    }
    catch (const CudaError &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
    Py_RETURN_NONE;
}

PyType_Slot kernel_slots[] = {
    {Py_tp_doc, const_cast<char *>("GpuKernel(cubin, symbol, shared, threads, make_unaligned=None, scratch=0, early=False)\n"
                                   "--\n\nA kernel loaded into the current device's context. `early`: it may start "
                                   "before the kernel before it has ended, for which it waits by itself.")},
    DJ_COLLECTED_SLOTS(kernel, kernel_new, kernel_dealloc),
    {0, nullptr},
};

PyType_Spec kernel_spec = DJ_CLASS(KernelObject, "GpuKernel", DJ_COLLECTED, kernel_slots);

PyMethodDef functions[] = {
    {"open_cuda_driver", open_driver_at, METH_O,
     "open_cuda_driver(path)\n--\n\nUse this library as the CUDA driver (default: libcuda.so.1 when first needed)."},
    {nullptr, nullptr, 0, nullptr},
};

} // namespace

const CudaDriver &cuda_driver()
{
    if (!driver_is_open) {
        std::lock_guard<std::mutex> lock(driver_mutex);
        if (!driver_is_open) {
            open_driver("libcuda.so.1");
        }
    }
    return driver;
}

void cuda_check(CuResult result, const char *what)
{
    if (result == kCuSuccess) {
        return;
    }
    const char *text = nullptr;
    driver.error_string(result, &text);
    throw CudaError(std::string("CUDA error while ") + what + ": " + (text != nullptr ? text : "unknown") + " ("
                    + std::to_string(result) + ")");
}

bool is_gpu_kernel(PyObject *object)
{
    return Py_IS_TYPE(object, kernel_type);
}

GpuKernel *gpu_kernel(PyObject *object)
{
    return reinterpret_cast<KernelObject *>(object)->kernel;
}

CuResult launch_kernel(const GpuKernel &kernel, CuFunction function, unsigned programs, unsigned threads, unsigned shared,
                       CuStream stream, void **params)
{
    if (!kernel.early || driver.launch_with == nullptr) {
        return driver.launch(function, programs, 1, 1, threads, 1, 1, shared, stream, params, nullptr);
    }
    CuLaunchAttribute attribute{};
    attribute.id = kCuEarlyStart;
    attribute.value = 1;
    CuLaunchConfig config{{programs, 1, 1}, {threads, 1, 1}, shared, stream, &attribute, 1};
    return driver.launch_with(&config, function, params, nullptr);
}

std::vector<CuGraphNode> latest_nodes(CuStream stream)
{
    int status = 0;
    uint64_t id = 0;
    void *graph = nullptr;
    const CuGraphNode *nodes = nullptr;
    size_t count = 0;
    const CudaDriver &cuda = cuda_driver();
    if (cuda.capture_info_3 != nullptr) {
        const void *edges = nullptr;
        cuda_check(cuda.capture_info_3(stream, &status, &id, &graph, &nodes, &edges, &count), "recording");
    }
    else {
        cuda_check(cuda.capture_info(stream, &status, &id, &graph, &nodes, &count), "recording");
    }
    if (status != kCuCaptureActive) {
        throw CudaError("the stream is not being captured");
    }
    return std::vector<CuGraphNode>(nodes, nodes + count);
}

CuGraphNode latest_node(CuStream stream)
{
    std::vector<CuGraphNode> nodes = latest_nodes(stream);
    if (nodes.size() != 1) {
        throw CudaError("what was recorded last is no single node");
    }
    return nodes[0];
}

void follow(CuStream stream, std::vector<CuGraphNode> &nodes)
{
    cuda_check(cuda_driver().set_latest(stream, nodes.data(), nodes.size(), kCuReplaceLatest), "recording");
}

void load_unaligned(GpuKernel *kernel)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *made = kernel->make_unaligned != nullptr ? PyObject_CallNoArgs(kernel->make_unaligned) : nullptr;
    const char *cubin, *symbol;
    Py_ssize_t length;
    unsigned shared = 0, threads = 0;
    bool fine = made != nullptr && PyArg_ParseTuple(made, "y#sII", &cubin, &length, &symbol, &shared, &threads);
    std::string failure;
    if (fine) {
        try {
            kernel->unaligned_shared = shared;
            kernel->unaligned_threads = threads;
            kernel->unaligned = load_function(kernel, cubin, symbol, shared);
        }
        catch (const CudaError &error) {
            failure = error.what();
        }
    }
    else {
        PyErr_Clear();
        failure = "a kernel for unaligned addresses could not be made";
    }
    Py_XDECREF(made);
    PyGILState_Release(state);
    if (!failure.empty()) {
        throw CudaError(failure);
    }
}

} // namespace dynajit

extern "C" int dj_cuda_driver_init(PyObject *module)
{
    using namespace dynajit;
    kernel_type = dj_add_type(module, &kernel_spec);
    return kernel_type != nullptr ? PyModule_AddFunctions(module, functions) : -1;
}
