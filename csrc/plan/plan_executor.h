/* A call plan in native form, and the state of one run of it. */
#ifndef DYNAJIT_PLAN_EXECUTOR_H
#define DYNAJIT_PLAN_EXECUTOR_H

#include "gpu/cuda_driver.h"
#include "plan/graph_values.h"

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Allocator.h>

namespace dynajit {

/* The Python error is set. */
struct PythonError {
};

/* What a slot holds when it is not a tensor's own business: sizes and strides in elements. */
struct BufferSpec {
    bool known = false;
    std::vector<int64_t> sizes, strides;
    at::ScalarType dtype = at::kFloat;
    size_t bytes = 0;
};

/* Inputs whose memory a slot becomes where the run alone holds it; -1: none. */
using Donors = std::array<int, 2>;
struct AllocStep {
    int slot;
    bool as_tensor; /* else only kernels touch it: memory without a tensor around it */
    Donors donors;
};
struct ReuseStep {
    int slot, base;
    bool as_tensor;
    Donors donors;
};
struct KernelStep {
    PyObject *owner; /* keeps the kernel alive */
    GpuKernel *kernel;
    std::vector<int> slots;
    std::vector<int> checked; /* positions of arguments whose alignment is not known */
    unsigned programs;
    std::vector<int> symbols; /* whose values it takes after the addresses, as ints of 32 bits */
    int counted = -1;         /* the symbol that says how many programs run; -1: `programs` does */
};
/* Calls a C function with these addresses; what it returns. */
using CpuCall = int (*)(void *function, char *const *addresses);
/* How to call a function of so many addresses; `checked`: it returns an int. One of too many returns an int and is given
 * them as an array. */
CpuCall cpu_call(size_t arity, bool checked);
struct CpuKernelStep {
    PyObject *owner; /* keeps the function's library open */
    PyObject *refused; /* called with the graph's inputs where the function returns 1; null if it returns nothing */
    void *function;
    CpuCall call;
    std::vector<int> slots;
    std::vector<int> symbols; /* whose values are handed to the function after the addresses */
    std::string name; /* in the profiler's traces; a GPU's kernels are seen there by themselves */
};
struct Patch {
    int argument;
    int kind; /* 0: tensor, 1: list of tensors, 2: list of optional tensors, 3: size, 4: list of sizes, 5: a float,
                 whose bits are a size; 7, 9: as 3 and 5, in the place of a tensor */
    std::vector<int> slots; /* of sizes: their numbers */
};
/* Where the results of a call go. */
struct Results {
    std::vector<int> slots;  /* -1: not kept */
    std::vector<bool> check; /* whether the layout is to be the slot's */
    std::vector<int> own;    /* where a result goes as the call gave it; -1: nowhere */
};
struct ExternStep {
    c10::OperatorHandle op;
    torch::jit::Stack arguments; /* None where a patch goes */
    std::vector<Patch> patches;
    Results results;
    bool plain; /* a function of torch's own: no result shares memory with an argument, nothing is written to */
};
struct ViewStep {
    int slot, base;
    int64_t offset;
    bool tracked; /* the user sees that it is a view */
    int size;     /* the size that is the offset; -1: it is `offset` */
    bool detached; /* all of the base, and no view of it to autograd */
};
struct FreeStep {
    std::vector<int> slots;
};
struct PythonStep {
    PyObject *function; /* of the inputs, then of the sizes */
    std::vector<int> inputs, sizes;
    Results results;
};
/* Finds symbols whose values the results of the steps before it tell. */
struct SizesStep {
    size_t first, count;
    std::vector<int> results; /* whose layouts could not be checked before */
};
struct TouchStep {
    int slot; /* an input that a kernel has written to */
};
/* The slots get the `drawn_state` of the device's generator. */
struct DrawStep {
    std::array<int, 4> slots;
    int64_t increment;
};
/* The slot gets a number in place of an address: that of a CPU tensor of one element, floats as the bits of a double. */
struct NumberStep {
    int slot;
    int source; /* the tensor's slot; -1: the number is a size */
    int size;
};
using Step = std::variant<AllocStep, ReuseStep, KernelStep, ExternStep, ViewStep, FreeStep, PythonStep, CpuKernelStep,
                          TouchStep, DrawStep, NumberStep, SizesStep>;

struct Output {
    int slot;         /* -1: the object; -2: the size of this number; -3: the float whose bits that size is */
    PyObject *object; /* owned */
};

/* Where the value of a symbol comes from: symbols and sizes of a plan are numbered. */
struct SymbolSource {
    int what;                 /* 0: size, 1: stride, both of a slot's tensor in dimension `at`; 2: an int; 3: a call;
                                 4: a float, of which the symbol is the bits */
    int slot;
    int64_t at;
    PyObject *function;       /* owned; of ints, to an int */
    std::vector<int> symbols; /* the function's arguments */
};
struct Term {
    int64_t factor;
    std::vector<int> symbols;
};
/* A size: a sum of products of symbols. */
using Polynomial = std::vector<Term>;
/* One number of a buffer that is a size. */
struct SpecPatch {
    int slot;
    int what; /* 0: of its sizes, 1: of its strides, 2: its bytes */
    int at;
    int size;
};
/* What is known of the buffers of one run. */
struct SizedBuffers {
    std::vector<int64_t> symbols, sizes;
    std::vector<BufferSpec> buffers;
    bool bound = false;
};

struct NativePlan {
    c10::Device device{c10::kCPU};
    c10::Allocator *allocator = nullptr;
    c10::DispatchKeySet keys;
    int inputs = 0;
    std::vector<int> written; /* inputs that kernels write to */
    std::vector<std::pair<int, at::Tensor>> constants;
    std::vector<std::pair<int, PyObject *>> objects; /* constants that are no tensors; owned */
    std::vector<BufferSpec> buffers;                 /* by slot */
    std::vector<Step> steps;
    std::vector<Output> outputs;
    std::vector<size_t> ends; /* by slot: so many steps, the first, make or read its memory */
    std::vector<SymbolSource> symbols; /* empty: all sizes are known */
    size_t from_inputs = 0; /* so many symbols, the first, are found at the inputs; the others in SizesSteps */
    std::vector<Polynomial> sizes;
    std::vector<SpecPatch> patches;
    mutable std::mutex spare_lock;
    mutable std::vector<std::unique_ptr<SizedBuffers>> spare; /* for the next runs */
};

struct Slot {
    at::Tensor tensor;
    c10::DataPtr memory;       /* of a buffer that is no tensor */
    char *address = nullptr;   /* of the first element */
    PyObject *object = nullptr; /* owned: what is no tensor */
};

/* Hears of what is put on the stream; for recording. */
struct Listener {
    virtual ~Listener() = default;
    /* Memory for this buffer, or an undefined tensor: the run allocates it. */
    virtual at::Tensor allocate(int slot) = 0;
    virtual void launched(const KernelStep &step, unsigned programs, unsigned shared, unsigned threads,
                          CuFunction function, const std::vector<char *> &addresses) = 0;
};

struct Run {
    explicit Run(const NativePlan &plan) : plan(plan), buffers(&plan.buffers), slots(plan.buffers.size())
    {
    }
    ~Run();
    Run(const Run &) = delete;
    Run &operator=(const Run &) = delete;

    const NativePlan &plan;
    const std::vector<BufferSpec> *buffers;
    std::unique_ptr<SizedBuffers> sized; /* null where all sizes are known */
    std::vector<Slot> slots;
    CuStream stream = nullptr;
    bool profiled = false; /* somebody records */
    Listener *listener = nullptr;
    bool holds_gil = false;
    size_t done = 0; /* so many steps, the first, have run */
};

struct GilReleased {
    PyThreadState *state = PyEval_SaveThread();
    ~GilReleased()
    {
        PyEval_RestoreThread(state);
    }
};

struct GilTaken {
    PyGILState_STATE state = PyGILState_Ensure();
    ~GilTaken()
    {
        PyGILState_Release(state);
    }
};

/* With the GIL. Throws PythonError. */
void set_inputs(Run &run, PyObject *const *inputs, Py_ssize_t count);
void take_inputs(Run &run, Values &inputs); /* which is empty then */
/* Finds the sizes of this run from its inputs. With the GIL. Throws PythonError. */
void bind_sizes(Run &run);
/* The values of the symbols that the step is about, and what they make known. With the GIL. Throws PythonError. */
void bind_sizes(Run &run, const SizesStep &step);
/* What an output that is no slot is, as a new reference, or null with an error set. With the GIL. */
PyObject *number_of(const Run &run, const Output &output);
/* The run's buffers can serve another one. */
void give_back_sizes(Run &run);
/* The steps that have not run, all or the first `end` of the plan. Without the GIL; takes it for steps in Python. Throws
 * PythonError (then holding no more than before) and others. */
void execute(Run &run, size_t end = SIZE_MAX);
/* With the GIL. */
PyObject *wrap_outputs(Run &run);
at::Tensor empty_for(const NativePlan &plan, const BufferSpec &spec);
CuStream current_stream(c10::Device device);
void set_tensor(Slot &slot, at::Tensor tensor);
/* Autograd is to know that the tensor was written to. */
void touch(const at::Tensor &tensor);
/* Memory of its own for a tensor that shares some with others until one of them is written to. */
void own_memory(const at::Tensor &tensor);
/* What a NumberStep reads. Throws where there is no such number. */
int64_t number_in(const at::Tensor &tensor);
bool is_plan_executor(PyObject *object);
/* The plan behind a PlanExecutor, or null with an error set. */
NativePlan *native_plan(PyObject *object);
/* Sets the Python error that a C++ exception stands for; inside of a catch block. */
void translate_exception();

} // namespace dynajit

#endif
