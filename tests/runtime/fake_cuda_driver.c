/* A CUDA driver for machines without one: kernels are the functions below, on the CPU's memory. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static int launches;

typedef void (*Kernel)(unsigned programs, void **params);

static float *pointer(void **params, int n) { return *(float **)params[n]; }

static void add_one(unsigned programs, void **params)
{
    for (unsigned i = 0; i < programs; i++) pointer(params, 1)[i] = pointer(params, 0)[i] + 1;
}

static void twice(unsigned programs, void **params)
{
    for (unsigned i = 0; i < programs; i++) pointer(params, 1)[i] = pointer(params, 0)[i] * 2;
}

int cuModuleLoadData(void **module, const void *data) { *module = (void *)data; return memcmp(data, "bad", 3) == 0 ? 209 : 0; }
int cuModuleUnload(void *module) { (void)module; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module;
    *function = strcmp(name, "add_one") == 0 ? (void *)add_one : strcmp(name, "twice") == 0 ? (void *)twice : NULL;
    return *function == NULL ? 500 : 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) { (void)function; (void)attribute; (void)value; return 0; }
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **params, void **extra)
{
    (void)y; (void)z; (void)bx; (void)by; (void)bz; (void)shared; (void)stream; (void)extra;
    launches++;
    ((Kernel)function)(x, params);
    return 0;
}
int cuGetErrorString(int error, const char **text) { *text = error == 209 ? "no binary for gpu" : "some error"; return 0; }
int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph, const void **nodes, size_t *count)
{
    (void)stream; (void)id; (void)graph; (void)nodes;
    *status = 0; *count = 0;
    return 0;
}
int cuGraphExecKernelNodeSetParams_v2(void *exec, void *node, const void *params) { (void)exec; (void)node; (void)params; return 0; }
int cuGraphExecMemcpyNodeSetParams(void *exec, void *node, const void *params, void *context) { (void)exec; (void)node; (void)params; (void)context; return 0; }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) { (void)stream; memcpy((void *)to, (void *)from, bytes); return 0; }
int cuGraphLaunch(void *exec, void *stream) { (void)exec; (void)stream; return 0; }
int cuCtxGetCurrent(void **context) { *context = NULL; return 0; }
int fake_launches(void) { return launches; }
