#include "plan.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/scalar_tensor.h>

#include "file.h"

namespace dynajit {

namespace {

/* Functions of more arguments than this take their addresses as an array. */
constexpr size_t MAX_ARGUMENTS = 96;

template <size_t... I> int call_with(void *function, char *const *given, std::index_sequence<I...>)
{
    using Pointer = int (*)(decltype(static_cast<void>(I), static_cast<char *>(nullptr))...);
    return reinterpret_cast<Pointer>(function)(given[I]...);
}

template <size_t N> int call_of(void *function, char *const *given)
{
    return call_with(function, given, std::make_index_sequence<N>());
}

template <size_t... N> int call(void *function, const std::vector<char *> &given, std::index_sequence<N...>)
{
    using Call = int (*)(void *, char *const *);
    static constexpr std::array<Call, sizeof...(N)> calls = {call_of<N>...};
    if (given.size() > MAX_ARGUMENTS) {
        return reinterpret_cast<int (*)(char *const *)>(function)(given.data());
    }
    return calls[given.size()](function, given.data());
}

/* The items of a list or tuple: what comes after its kind. */
std::vector<Json> items_of(const Json &data)
{
    const Json::Array &all = data.array();
    if (all.empty()) {
        throw Error("not as dynajit writes it: a list without a kind");
    }
    return {all.begin() + 1, all.end()};
}

std::vector<std::string> texts_of(const Json &data)
{
    std::vector<std::string> found;
    for (const Json &item : items_of(data)) {
        found.push_back(item.text());
    }
    return found;
}

std::string name_of(const Json &data)
{
    return data.kind() == "ref" ? data[1].text() : std::string();
}

/* What torch calls by that name, as the number that operators are given for it. */
int64_t number_named(const std::string &name)
{
    if (name == "strided") {
        return static_cast<int64_t>(at::kStrided);
    }
    static const std::map<std::string, at::MemoryFormat> formats = {
        {"contiguous_format", at::MemoryFormat::Contiguous},
        {"channels_last", at::MemoryFormat::ChannelsLast},
        {"channels_last_3d", at::MemoryFormat::ChannelsLast3d},
        {"preserve_format", at::MemoryFormat::Preserve},
    };
    auto format = formats.find(name);
    return static_cast<int64_t>(format != formats.end() ? static_cast<int>(format->second)
                                                        : static_cast<int>(dtype_named(name)));
}

/* A number in the place of a tensor, which does not decide the result's dtype. */
at::Tensor wrapped(const at::Scalar &number)
{
    at::Tensor found = at::scalar_tensor(number, number.isFloatingPoint() ? at::kDouble : at::kLong);
    found.unsafeGetTensorImpl()->set_wrapped_number(true);
    return found;
}

double float_of_data(const Json &data)
{
    return data.kind() == "float" ? std::strtod(data[1].text().c_str(), nullptr) : data.number();
}

} // namespace

Library::Library(std::string_view bytes)
{
    int file = memfd_create("dynajit kernels", MFD_CLOEXEC);
    std::string_view rest = bytes;
    while (file >= 0 && !rest.empty()) {
        ssize_t count = write(file, rest.data(), rest.size());
        if (count <= 0) {
            break;
        }
        rest.remove_prefix(static_cast<size_t>(count));
    }
    if (file < 0 || !rest.empty()) {
        if (file >= 0) {
            close(file);
        }
        throw Error("its kernels can't be written to memory");
    }
    handle_ = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
    const char *why = handle_ == nullptr ? dlerror() : nullptr;
    std::string text = why != nullptr ? why : "";
    close(file);
    if (handle_ == nullptr) {
        throw Error("its kernels can't be opened here: " + text);
    }
}

Library::~Library()
{
    dlclose(handle_);
}

void *Library::function(const std::string &name) const
{
    void *found = dlsym(handle_, name.c_str());
    if (found == nullptr) {
        throw Error("its kernels have no function " + name);
    }
    return found;
}

int64_t Plan::Size::of(const Run &run) const
{
    Number total = int64_t{0};
    for (const Term &term : terms) {
        __int128 product = term.factor;
        for (size_t at : term.symbols) {
            product *= int_of(run.symbols[at]);
            if (product != static_cast<int64_t>(product)) {
                throw Error("a size has more than 63 bits");
            }
        }
        total = int_of(total) + static_cast<int64_t>(product);
    }
    return int_of(total);
}

size_t Plan::slot(const std::string &name)
{
    return slots_.emplace(name, slots_.size()).first->second;
}

size_t Plan::symbol(const std::string &name)
{
    return symbols_.emplace(name, symbols_.size()).first->second;
}

Plan::Size Plan::size(const Json &data)
{
    Size found;
    if (data.is_int()) {
        found.terms.push_back({data.integer(), {}});
        return found;
    }
    if (data.kind() != "size") {
        throw Error("not as dynajit writes it: a size is none");
    }
    for (const Json &row : data[1].array()) {
        Size::Term term{row[0].integer(), {}};
        for (size_t i = 1; i < row.array().size(); i++) {
            term.symbols.push_back(symbol(row[i].text()));
        }
        found.terms.push_back(std::move(term));
    }
    return found;
}

const Plan::Spec &Plan::spec(const std::string &name) const
{
    auto found = specs_.find(name);
    if (found == specs_.end()) {
        throw Error("not as dynajit writes it: the plan has no tensor " + name);
    }
    return found->second;
}

std::vector<int64_t> Plan::all(const std::vector<Size> &sizes, const Run &run)
{
    std::vector<int64_t> found;
    found.reserve(sizes.size());
    for (const Size &size : sizes) {
        found.push_back(size.of(run));
    }
    return found;
}

/* The tensor, or a copy with the strides that the plan relies on. */
at::Tensor Plan::laid_out(const Spec &spec, const Run &run, at::Tensor tensor)
{
    std::vector<int64_t> sizes = all(spec.sizes, run), strides = all(spec.strides, run);
    if (tensor.sizes() != at::IntArrayRef(sizes) || tensor.scalar_type() != spec.dtype) {
        throw Error("an operator gave " + shown(tensor.scalar_type(), tensor.sizes()) + "; expected is " +
                    shown(spec.dtype, sizes));
    }
    for (size_t i = 0; i < sizes.size(); i++) {
        if (sizes[i] > 1 && tensor.numel() != 0 && tensor.strides()[i] != strides[i]) {
            at::Tensor copy = at::empty_strided(sizes, strides, tensor.options());
            copy.copy_(tensor);
            return copy;
        }
    }
    return tensor;
}

Plan::Plan(const Json &data, const Library *kernels, const Weights &constants)
{
    for (const Json &row : data["kernels"].array()) {
        Kernel kernel{row[3].boolean(), {}};
        for (const Json &name : row[4].array()) {
            kernel.sizes.push_back(name.text());
        }
        kernels_.emplace(row[0].text(), std::move(kernel));
    }
    for (const Json &row : data["buffers"].array()) {
        Spec spec;
        for (const Json &number : row[1].array()) {
            spec.sizes.push_back(size(number));
        }
        for (const Json &number : row[2].array()) {
            spec.strides.push_back(size(number));
        }
        if (row[3].kind() != "torch" || spec.sizes.size() != spec.strides.size()) {
            throw Error("not as dynajit writes it: a tensor of no dtype, or of other strides than sizes");
        }
        spec.dtype = dtype_named(row[3][1].text());
        specs_.emplace(row[0].text(), std::move(spec));
    }
    for (const Json &name : data["inputs"].array()) {
        inputs_.push_back(name.text());
        slot(name.text());
    }
    for (const Json &name : data["constants"].array()) {
        auto found = constants.find(name.text());
        if (found == constants.end()) {
            throw Error("the constant " + name.text() + " is missing");
        }
        constants_.emplace(slot(name.text()), found->second);
    }
    for (const Json &output : data["outputs"].array()) {
        std::string name = name_of(output);
        outputs_.push_back(name.empty() ? std::nullopt : std::optional<size_t>(slot(name)));
    }
    for (const Json &step : data["steps"].array()) {
        if (step[0].text() == "KernelStep") {
            for (const std::string &name : texts_of(step[1]["args"])) {
                relied_on_[name] = true;
            }
        }
        else if (step[0].text() == "ViewStep" && !step[1]["detached"].boolean()) {
            relied_on_[step[1]["base"].text()] = true;
        }
    }
    for (const Json &step : data["steps"].array()) {
        add(step[0].text(), step[1], kernels);
    }
}

void Plan::add(const std::string &kind, const Json &fields, const Library *kernels)
{
    if (kind == "AllocStep") {
        add_alloc(fields);
    }
    else if (kind == "KernelStep") {
        add_kernel(fields, kernels);
    }
    else if (kind == "ExternStep") {
        add_call(fields);
    }
    else if (kind == "ViewStep") {
        add_view(fields);
    }
    else if (kind == "SizeStep") {
        add_size(fields);
    }
    else if (kind == "FreeStep") {
        std::vector<size_t> gone;
        for (const std::string &name : texts_of(fields["buffers"])) {
            gone.push_back(slot(name));
        }
        steps_.emplace_back([gone](Run &run) {
            for (size_t at : gone) {
                run.tensors[at].reset();
            }
        });
    }
    else if (kind == "TouchStep") {
        steps_.emplace_back([at = slot(fields["buffer"].text())](Run &run) {
            if (run.tensors[at].defined() && !run.tensors[at].is_inference()) {
                run.tensors[at].unsafeGetTensorImpl()->bump_version();
            }
        });
    }
    else {
        throw Error("it has a step of kind " + kind + ", which this runtime does not know");
    }
}

void Plan::add_alloc(const Json &fields)
{
    const std::string &name = fields["buffer"].text();
    const Spec &made = spec(name);
    size_t to = slot(name);
    if (fields["reuse"].is_null()) {
        steps_.emplace_back([this, &made, to](Run &run) {
            run.tensors[to] = at::empty_strided(all(made.sizes, run), all(made.strides, run), at::TensorOptions(made.dtype));
        });
        return;
    }
    /* the memory of the other, from its first element on */
    steps_.emplace_back([this, &made, to, from = slot(fields["reuse"].text())](Run &run) {
        at::Tensor memory = std::move(run.tensors[from]);
        run.tensors[from].reset();
        std::vector<int64_t> sizes = all(made.sizes, run), strides = all(made.strides, run);
        at::Tensor found = at::empty({0}, at::TensorOptions(made.dtype));
        int64_t bytes = memory.storage_offset() * static_cast<int64_t>(memory.element_size());
        auto element = static_cast<int64_t>(c10::elementSize(made.dtype));
        if (bytes % element != 0) {
            throw Error("memory that is used again begins between elements");
        }
        found.set_(memory.storage(), bytes / element, sizes, strides);
        run.tensors[to] = std::move(found);
    });
}

void Plan::add_kernel(const Json &fields, const Library *kernels)
{
    const std::string &name = fields["kernel"].text();
    auto known = kernels_.find(name);
    if (known == kernels_.end() || kernels == nullptr) {
        throw Error("not as dynajit writes it: there is no kernel " + name);
    }
    std::vector<size_t> tensors, symbols;
    for (const std::string &argument : texts_of(fields["args"])) {
        spec(argument);
        tensors.push_back(slot(argument));
    }
    for (const std::string &size : known->second.sizes) {
        symbols.push_back(symbol(size));
    }
    void *function = kernels->function(name);
    steps_.emplace_back([function, name, tensors, symbols, checked = known->second.checked](Run &run) {
        std::vector<char *> given;
        given.reserve(tensors.size() + symbols.size());
        for (size_t at : tensors) {
            given.push_back(static_cast<char *>(const_cast<void *>(run.tensors[at].const_data_ptr())));
        }
        for (size_t at : symbols) {
            int64_t bits = 0;
            if (const double *real = std::get_if<double>(&run.symbols[at])) {
                std::memcpy(&bits, real, sizeof bits);
            }
            else {
                bits = int_of(run.symbols[at]);
            }
            given.push_back(reinterpret_cast<char *>(static_cast<intptr_t>(bits)));
        }
        int status = call(function, given, std::make_index_sequence<MAX_ARGUMENTS + 1>());
        if (checked && status != 0) {
            throw Error("an index is outside of its tensor, in the kernel " + name);
        }
    });
}

void Plan::add_view(const Json &fields)
{
    const std::string &name = fields["output"].text();
    size_t to = slot(name), from = slot(fields["base"].text());
    if (fields["detached"].boolean()) {
        steps_.emplace_back([to, from](Run &run) { run.tensors[to] = run.tensors[from].detach(); });
        return;
    }
    steps_.emplace_back([this, &wanted = spec(name), to, from, offset = size(fields["offset"])](Run &run) {
        const at::Tensor &base = run.tensors[from];
        int64_t start = base.storage_offset() + offset.of(run);
        std::vector<int64_t> sizes = all(wanted.sizes, run), strides = all(wanted.strides, run);
        if (wanted.dtype != base.scalar_type()) {
            throw Error("not as dynajit writes it: a view of another dtype");
        }
        run.tensors[to] = at::as_strided(base, sizes, strides, start);
    });
}

void Plan::add_size(const Json &fields)
{
    size_t to = symbol(fields["symbol"].text());
    const std::string &what = fields["what"].text(), &source = fields["source"].text();
    if (what == "number" || what == "float") {
        symbol(source); /* given under its own name */
        if (source != fields["symbol"].text()) {
            steps_.emplace_back([to, from = symbol(source)](Run &run) { run.symbols[to] = run.symbols[from]; });
        }
        return;
    }
    if (what == "expression") {
        const auto index = [this](const std::string &name) {
            bool given = std::find(inputs_.begin(), inputs_.end(), name) != inputs_.end() && specs_.count(name) == 0;
            if (!given && symbols_.count(name) == 0) {
                throw Error("not as dynajit writes it: a size of the unknown symbol " + name);
            }
            return symbol(name);
        };
        steps_.emplace_back([to, expression = Expression::of_text(source, index)](Run &run) {
            run.symbols[to] = expression.value(run.symbols);
        });
        return;
    }
    steps_.emplace_back([to, from = slot(source), dim = fields["at"].integer(), stride = what == "stride"](Run &run) {
        run.symbols[to] = stride ? run.tensors[from].stride(dim) : run.tensors[from].size(dim);
    });
}

Plan::Argument Plan::argument_of_list(const Json &data, const c10::TypePtr &element, std::optional<int32_t> count)
{
    std::vector<Argument> parts;
    std::string kind = data.kind();
    if (kind == "list" || kind == "tuple" || kind == "Size") {
        for (const Json &item : items_of(data)) {
            parts.push_back(argument(item, element, std::nullopt));
        }
    }
    else {
        parts.assign(static_cast<size_t>(count.value_or(1)), argument(data, element, std::nullopt));
    }
    return [parts, type = element->kind() == c10::TypeKind::SymIntType ? c10::TypePtr(c10::IntType::get()) : element](const Run &run) {
        c10::impl::GenericList found(type);
        for (const Argument &part : parts) {
            found.push_back(part(run));
        }
        return c10::IValue(found);
    };
}

Plan::Argument Plan::argument(const Json &data, const c10::TypePtr &type, std::optional<int32_t> count)
{
    auto constant = [](c10::IValue value) -> Argument { return [value](const Run &) { return value; }; };
    if (auto optional = type->cast<c10::OptionalType>()) {
        return data.is_null() ? constant({}) : argument(data, optional->getElementType(), count);
    }
    std::string kind = data.kind();
    if (auto list = type->cast<c10::ListType>()) {
        return argument_of_list(data, list->getElementType(), count);
    }
    if (kind == "ref") {
        const std::string &name = data[1].text();
        if (specs_.count(name) != 0) {
            return [at = slot(name)](const Run &run) { return c10::IValue(run.tensors[at]); };
        }
        return [at = symbol(name)](const Run &run) {
            return std::holds_alternative<double>(run.symbols[at]) ? c10::IValue(float_of(run.symbols[at]))
                                                                   : c10::IValue(int_of(run.symbols[at]));
        };
    }
    if (kind == "size") {
        return [number = size(data)](const Run &run) { return c10::IValue(number.of(run)); };
    }
    if (kind == "device") {
        return constant(c10::Device(data[1].text()));
    }
    if (kind == "torch") {
        return constant(number_named(data[1].text()));
    }
    bool is_float = kind == "float" || std::holds_alternative<double>(data.value);
    switch (type->kind()) {
    case c10::TypeKind::TensorType:
        return constant(data.is_null() ? c10::IValue(at::Tensor())
                        : is_float     ? c10::IValue(wrapped(float_of_data(data)))
                                       : c10::IValue(wrapped(data.integer())));
    case c10::TypeKind::FloatType:
        return constant(float_of_data(data));
    case c10::TypeKind::BoolType:
        return constant(data.boolean());
    case c10::TypeKind::StringType:
        return constant(data.text());
    case c10::TypeKind::NumberType:
        if (const bool *truth = std::get_if<bool>(&data.value)) {
            return constant(*truth);
        }
        return constant(is_float ? c10::IValue(float_of_data(data)) : c10::IValue(data.integer()));
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
        return constant(data.integer());
    default:
        break;
    }
    throw Error("an operator takes " + type->str() + ", which this runtime can't give it");
}

void Plan::add_call(const Json &fields)
{
    const std::string &target = fields["target"].text();
    size_t namespaced = target.find("::"), dot = target.rfind('.');
    if (namespaced == std::string::npos || dot == std::string::npos) {
        throw Error("it calls " + target + ", a function of Python");
    }
    std::string overload = target.substr(dot + 1);
    auto found = c10::Dispatcher::singleton().findSchema({target.substr(0, dot), overload == "default" ? "" : overload});
    if (!found.has_value()) {
        throw Error("the operator " + target + " is not registered in this process: load the library that has it");
    }
    const c10::FunctionSchema &schema = found->schema();
    std::vector<Json> given = items_of(fields["args"]);
    std::vector<Argument> arguments;
    for (size_t i = 0; i < schema.arguments().size(); i++) {
        const c10::Argument &parameter = schema.arguments()[i];
        const Json *named = fields["kwargs"][1].find(parameter.name());
        if (!parameter.kwarg_only() && i < given.size()) {
            arguments.push_back(argument(given[i], parameter.type(), parameter.N()));
        }
        else if (named != nullptr) {
            arguments.push_back(argument(*named, parameter.type(), parameter.N()));
        }
        else if (parameter.default_value().has_value()) {
            arguments.emplace_back([value = *parameter.default_value()](const Run &) { return value; });
        }
        else {
            throw Error("not as dynajit writes it: " + target + " without its argument " + parameter.name());
        }
    }
    struct Result {
        size_t slot;
        const Spec *wanted; /* null where nothing relies on its strides */
        bool visible;       /* to the caller, who gets what the operator gave */
    };
    std::vector<std::optional<Result>> results;
    for (const Json &name : items_of(fields["outputs"])) {
        if (name.is_null()) {
            results.emplace_back();
            continue;
        }
        bool known = specs_.count(name.text()) != 0;
        bool relied_on = known && fields["check"].boolean() && relied_on_.count(name.text()) != 0;
        size_t to = slot(name.text());
        bool visible = std::find(outputs_.begin(), outputs_.end(), std::optional<size_t>(to)) != outputs_.end();
        results.push_back(Result{to, relied_on ? &spec(name.text()) : nullptr, relied_on && visible});
    }
    steps_.emplace_back([op = *found, arguments, results](Run &run) {
        torch::jit::Stack stack;
        stack.reserve(arguments.size());
        for (const Argument &argument : arguments) {
            stack.push_back(argument(run));
        }
        op.callBoxed(stack);
        if (stack.size() == 1 && stack[0].isTensorList()) {
            std::vector<at::Tensor> list = stack[0].toTensorVector();
            stack.assign(list.begin(), list.end());
        }
        for (size_t i = 0; i < results.size() && i < stack.size(); i++) {
            if (!results[i].has_value() || !stack[i].isTensor() || !stack[i].toTensor().defined()) {
                continue;
            }
            at::Tensor tensor = std::move(stack[i]).toTensor();
            if (results[i]->visible) {
                run.own[results[i]->slot] = tensor;
            }
            run.tensors[results[i]->slot] =
                results[i]->wanted != nullptr ? laid_out(*results[i]->wanted, run, std::move(tensor)) : std::move(tensor);
        }
    });
}

std::vector<at::Tensor> Plan::run(const std::vector<Given> &given) const
{
    Run run;
    run.tensors.resize(slots_.size());
    run.own.resize(slots_.size());
    run.symbols.assign(symbols_.size(), int64_t{0});
    for (size_t i = 0; i < given.size(); i++) {
        if (const at::Tensor *tensor = std::get_if<at::Tensor>(&given[i])) {
            run.tensors[slots_.at(inputs_[i])] = *tensor;
        }
        else if (auto found = symbols_.find(inputs_[i]); found != symbols_.end()) {
            run.symbols[found->second] = std::get<Number>(given[i]);
        }
    }
    for (const auto &[at, tensor] : constants_) {
        run.tensors[at] = tensor;
    }
    for (const Step &step : steps_) {
        step(run);
    }
    std::vector<at::Tensor> results;
    for (const std::optional<size_t> &at : outputs_) {
        results.push_back(!at.has_value() ? at::Tensor() : run.own[*at].defined() ? run.own[*at] : run.tensors[*at]);
    }
    return results;
}

} // namespace dynajit
