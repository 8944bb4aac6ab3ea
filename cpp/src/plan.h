/* A call plan: the steps between the tensors that a program is given and those that it gives.
 *
 * In: the plan as JSON (`dynajit/runtime/plan_data.py` writes it) and the kernels' machine code. Out: `Plan::run`, which
 * any number of threads may call. One more kind of step: a case in `Plan::add`. */
#pragma once

#include <functional>
#include <memory>

#include <ATen/core/ivalue.h>

#include "sizes.h"

namespace dynajit {

/* A shared object that was opened from its bytes. */
class Library {
public:
    explicit Library(std::string_view bytes);
    ~Library();
    Library(const Library &) = delete;
    Library &operator=(const Library &) = delete;

    void *function(const std::string &name) const;

private:
    void *handle_ = nullptr;
};

class Plan {
public:
    Plan(const Json &data, const Library *kernels, const Weights &constants);

    /* What the plan takes at one place: a tensor, or a number where it is a size. */
    using Given = std::variant<at::Tensor, Number>;

    size_t inputs() const { return inputs_.size(); }
    size_t outputs() const { return outputs_.size(); }
    bool is_tensor(size_t input) const { return specs_.count(inputs_[input]) != 0; }

    /* The results that are tensors; an undefined one in place of another. */
    std::vector<at::Tensor> run(const std::vector<Given> &given) const;

private:
    struct Run {
        std::vector<at::Tensor> tensors;
        std::vector<at::Tensor> own; /* what operators gave, where a kernel wanted it laid out otherwise */
        std::vector<Number> symbols;
    };

    /* A number, or a sum of products of symbols. */
    struct Size {
        struct Term {
            int64_t factor;
            std::vector<size_t> symbols;
        };
        std::vector<Term> terms;
        int64_t of(const Run &run) const;
    };

    struct Spec {
        std::vector<Size> sizes, strides;
        at::ScalarType dtype = at::kFloat;
    };

    using Step = std::function<void(Run &)>;
    using Argument = std::function<c10::IValue(const Run &)>;

    size_t slot(const std::string &name);
    size_t symbol(const std::string &name);
    Size size(const Json &data);
    const Spec &spec(const std::string &name) const;
    static std::vector<int64_t> all(const std::vector<Size> &sizes, const Run &run);
    static at::Tensor laid_out(const Spec &spec, const Run &run, at::Tensor tensor);

    void add(const std::string &kind, const Json &fields, const Library *kernels);
    void add_alloc(const Json &fields);
    void add_kernel(const Json &fields, const Library *kernels);
    void add_call(const Json &fields);
    void add_view(const Json &fields);
    void add_size(const Json &fields);
    Argument argument(const Json &data, const c10::TypePtr &type, std::optional<int32_t> count);
    Argument argument_of_list(const Json &data, const c10::TypePtr &element, std::optional<int32_t> count);

    struct Kernel {
        bool checked;
        std::vector<std::string> sizes;
    };

    std::map<std::string, size_t> slots_, symbols_;
    std::map<std::string, Spec> specs_;
    std::map<std::string, Kernel> kernels_;
    std::map<size_t, at::Tensor> constants_;
    std::map<std::string, bool> relied_on_; /* buffers whose strides a kernel or view relies on */
    std::vector<std::string> inputs_;
    std::vector<std::optional<size_t>> outputs_;
    std::vector<Step> steps_;
};

} // namespace dynajit
