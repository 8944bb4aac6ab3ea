/* Runs exported programs (`dynajit.export`, files by custom called *.djt) with libtorch alone: no Python in the process.
 *
 *     dynajit::Program program("model.djt");
 *     std::vector<at::Tensor> results = program.run({at::ones({4, 8})});
 *
 * A file holds machine code: load only what you would run. */
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace dynajit {

/* Why a file can't be loaded or a call not be made: what was found, and what is expected. */
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

using Weights = std::map<std::string, at::Tensor>;

/* A size that may be another one at each call. */
struct Varying {
    std::string name;             /* the user's, as given to `Dim` */
    int64_t low;                  /* the least value */
    std::optional<int64_t> high;  /* the greatest value, if there is one */
};

/* One tensor that a call takes. A size that is neither a number nor `Varying` is computed from those of others. */
struct Input {
    std::string name;  /* how the program's source reaches it, as "x" or "batch['ids'][0]" */
    at::ScalarType dtype;
    std::vector<std::variant<int64_t, Varying, std::monostate>> sizes;
    bool written;      /* the call changes it: it must have the strides that the program was exported for */
};

struct Options {
    bool verify = true;                  /* compare the checksum of the weights; everything else always is */
    const Weights *weights = nullptr;    /* in place of those in the file; needed where it was saved without */
};

class Program {
public:
    /* Maps the file into memory. Throws Error: the file is damaged or of another kind, was made with another release of
     * torch or for processors with other instructions alone, is for training, calls functions of Python, or weights
     * don't fit. */
    explicit Program(const std::string &path, const Options &options = {});

    /* The tensors that a call takes, in order; names of those that it gives. */
    const std::vector<Input> &inputs() const;
    const std::vector<std::string> &outputs() const;

    /* Which of the file's machine code runs: the first, as `dynajit.export` was given them by `simd`, whose instructions
     * this processor has; "" where there are no kernels. */
    const std::string &target() const;

    /* Parameters and buffers by their names in the model. Writing into one changes what later calls compute. */
    Weights weights() const;

    /* Later calls compute with these; each has to have the dtype and sizes of the one that it replaces. Calls that are
     * under way end with those that they began with. Throws Error. */
    void set_weights(const Weights &given);

    /* One call, without gradients, on the calling thread: programs are for CPUs, where there are no streams to choose;
     * kernels take as many threads as `at::set_num_threads` says. Any number of threads may call at once; a program that
     * writes buffers of its own gives them to all. Throws Error for tensors that the program was not exported for; c10::Error from operators. */
    std::vector<at::Tensor> run(const std::vector<at::Tensor> &given) const;

private:
    struct State;
    std::shared_ptr<State> state_;
};

} // namespace dynajit
