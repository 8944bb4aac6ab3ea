/* A CUDA driver for machines without one: kernels are the functions below, on the CPU's memory. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static int launches, updates, capturing, early, failure;

void fake_failure(int error) { failure = error; }

/* A recorded graph: kernels of up to three parameters, and copies. */
typedef struct {
    void *function; /* NULL: a copy */
    unsigned programs;
    void *pointers[3];
    size_t bytes;
    size_t waits[4], n_waits; /* for nodes that were recorded before it, by their numbers */
} Node;
static Node nodes[64];
static size_t count;
static const void *latest[64];
static size_t n_latest;

void fake_capture(int on) { capturing = on; if (on) count = n_latest = 0; }
long fake_waits(size_t node, size_t n) { return n < nodes[node].n_waits ? (long)nodes[node].waits[n] : -1; }
size_t fake_nodes(void) { return count; }
size_t fake_latest(void) { return n_latest; }

static void record(Node node)
{
    for (node.n_waits = 0; node.n_waits < n_latest && node.n_waits < 4; node.n_waits++)
        node.waits[node.n_waits] = (size_t)((const Node *)latest[node.n_waits] - nodes);
    nodes[count] = node;
    latest[0] = &nodes[count++];
    n_latest = 1;
}

static void change(void *node, Node to)
{
    Node *found = node;
    found->function = to.function;
    found->programs = to.programs;
    memcpy(found->pointers, to.pointers, sizeof to.pointers);
    found->bytes = to.bytes;
}
int fake_updates(void) { return updates; }

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

static void scale(unsigned programs, void **params)
{
    for (unsigned i = 0; i < programs; i++) pointer(params, 1)[i] = pointer(params, 0)[i] * (float)*(double *)params[2];
}

static void add_size(unsigned programs, void **params)
{
    for (unsigned i = 0; i < programs; i++) pointer(params, 1)[i] = pointer(params, 0)[i] + *(int *)params[2];
}

int cuModuleLoadData(void **module, const void *data) { *module = (void *)data; return memcmp(data, "bad", 3) == 0 ? 209 : 0; }
int cuModuleUnload(void *module) { (void)module; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module;
    *function = strcmp(name, "add_one") == 0 ? (void *)add_one : strcmp(name, "twice") == 0 ? (void *)twice
              : strcmp(name, "scale") == 0 ? (void *)scale : strcmp(name, "add_size") == 0 ? (void *)add_size : NULL;
    return *function == NULL ? 500 : 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) { (void)function; (void)attribute; (void)value; return 0; }
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **params, void **extra)
{
    (void)y; (void)z; (void)bx; (void)by; (void)bz; (void)shared; (void)stream; (void)extra;
    if (capturing) {
        record((Node){function, x, {*(void **)params[0], *(void **)params[1], *(void **)params[2]}, 0});
        return 0;
    }
    if (failure) return failure;
    launches++;
    ((Kernel)function)(x, params);
    return 0;
}
typedef struct { unsigned grid[3], block[3], shared; void *stream; const int *attributes; unsigned count; } LaunchConfig;

int cuLaunchKernelEx(const LaunchConfig *config, void *function, void **params, void **extra)
{
    /* one attribute: its number, padding, its value */
    early += config->count == 1 && config->attributes[0] == 6 && config->attributes[2] == 1;
    return cuLaunchKernel(function, config->grid[0], 1, 1, config->block[0], 1, 1, config->shared, config->stream, params,
                          extra);
}
int fake_early(void) { return early; }
int cuGetErrorString(int error, const char **text) { *text = error == 209 ? "no binary for gpu" : error == 700 ? "an illegal memory access was encountered" : "some error"; return 0; }
int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph, const void ***found, size_t *number)
{
    (void)stream; (void)id; (void)graph;
    *status = capturing; *number = n_latest; *found = latest;
    return 0;
}
int cuStreamUpdateCaptureDependencies(void *stream, void **given, size_t number, unsigned flags)
{
    (void)stream;
    memcpy(latest, given, number * sizeof *given);
    n_latest = number;
    return flags == 1 ? 0 : 1;
}

typedef struct { void *function; unsigned grid[3], block[3], shared; void **params; } KernelParams;
typedef struct { size_t a[4]; int type; const void *host; uint64_t src; void *array, *reserved; size_t pitch[2];
                 size_t b[4]; int to; void *to_host; uint64_t dst; void *to_array, *to_reserved; size_t to_pitch[2];
                 size_t width, height, depth; } CopyParams;

int cuGraphExecKernelNodeSetParams_v2(void *exec, void *node, const KernelParams *params)
{
    (void)exec;
    updates++;
    change(node, (Node){params->function, params->grid[0], {*(void **)params->params[0], *(void **)params->params[1],
                        *(void **)params->params[2]}, 0});
    return 0;
}
int cuGraphExecMemcpyNodeSetParams(void *exec, void *node, const CopyParams *params, void *context)
{
    (void)exec; (void)context;
    updates++;
    change(node, (Node){NULL, 0, {(void *)params->dst, (void *)params->src}, params->width});
    return params->height == 1 && params->depth == 1 && params->type == 2 && params->to == 2 ? 0 : 1;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    (void)stream;
    if (capturing) record((Node){NULL, 0, {(void *)to, (void *)from}, bytes});
    else memcpy((void *)to, (void *)from, bytes);
    return 0;
}
int cuGraphLaunch(void *exec, void *stream)
{
    (void)exec; (void)stream;
    for (size_t i = 0; i < count; i++) {
        Node *node = &nodes[i];
        void *params[3] = {&node->pointers[0], &node->pointers[1], &node->pointers[2]};
        if (node->function) ((Kernel)node->function)(node->programs, params);
        else memcpy(node->pointers[0], node->pointers[1], node->bytes);
    }
    return 0;
}
int cuCtxGetCurrent(void **context) { *context = NULL; return 0; }
int cuCtxSetCurrent(void *context) { (void)context; return 0; }
int fake_launches(void) { return launches; }
