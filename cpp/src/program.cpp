#include "dynajit/runtime.h"

#include <algorithm>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>

#include <sys/utsname.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/version.h>

#include "file.h"
#include "plan.h"

namespace dynajit {

namespace {

/* A weight as the plan takes it: of these sizes, with these strides. */
struct WeightRow {
    at::ScalarType dtype;
    std::vector<int64_t> sizes, strides;
};

struct Leaf {
    std::vector<Expression> sizes, strides;
};

struct Relation {
    Json tree;
    Expression expression;
};

struct Symbol {
    size_t leaf;
    int64_t dim;
    Varying shown;
};

/* Where an input of the plan comes from. */
struct Giver {
    std::string kind; /* "leaf", "size" or "weight" */
    size_t at = 0;    /* which leaf or size */
    std::string name;
};

std::vector<int64_t> integers(const Json &data)
{
    std::vector<int64_t> found;
    for (const Json &item : data.array()) {
        found.push_back(item.integer());
    }
    return found;
}

std::string release()
{
    return std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR);
}

void check_machine(const Json &facts)
{
    utsname machine{};
    uname(&machine);
    const std::string &torch = facts["versions"]["torch"].text(), &arch = facts["versions"]["machine"].text();
    if (torch != release() || arch != machine.machine) {
        throw Error("it was exported with torch " + torch + " for " + arch + "; this is torch " + release() + " on " +
                    machine.machine + ". Export it anew here");
    }
    if (const Json *gradients = facts.find("gradients"); gradients != nullptr && !gradients->is_null()) {
        throw Error("it was exported with gradients=True, for training, which needs Python: load it with dynajit.load, or "
                    "export it without");
    }
}

/* What the processor can do, as /proc/cpuinfo has it, and what kind it is. */
std::set<std::string> instructions()
{
    utsname machine{};
    uname(&machine);
    std::ifstream cpu("/proc/cpuinfo");
    std::string line;
    std::set<std::string> has = {machine.machine};
    while (std::getline(cpu, line)) {
        if (line.rfind("flags", 0) == 0 || line.rfind("Features", 0) == 0) {
            std::istringstream words(line.substr(line.find(':') + 1));
            for (std::string word; words >> word;) {
                has.insert(word);
            }
            break;
        }
    }
    return has;
}

/* The first of the targets, the most demanding, whose instructions this processor has. */
std::string best_target(const Json &targets)
{
    const std::set<std::string> has = instructions();
    std::string missing;
    for (const Json &row : targets.array()) {
        missing.clear();
        for (const Json &name : row[1].array()) {
            if (has.count(name.text()) == 0) {
                missing += (missing.empty() ? "" : ", ") + name.text();
            }
        }
        if (missing.empty()) {
            return row[0].text();
        }
    }
    throw Error("its kernels use " + missing + ", which this processor lacks");
}

/* The names of the tensors of a structure: results and how they are reached. */
void add_names(const Json &structure, const std::string &path, std::vector<std::string> &names)
{
    if (structure.is_text()) {
        names.push_back(path);
        return;
    }
    std::string kind = structure.kind();
    const Json::Array &all = structure.array();
    if (kind == "list" || kind == "tuple") {
        for (size_t i = 1; i < all.size(); i++) {
            add_names(all[i], path + "[" + std::to_string(i - 1) + "]", names);
        }
    }
    else if (kind != "constant") {
        size_t first = kind == "named" ? 3 : 2;
        const Json::Array &keys = structure[first - 1].array();
        for (size_t i = first; i < all.size(); i++) {
            const std::string &key = keys.at(i - first).text();
            add_names(all[i], path.empty() ? key : path + "." + key, names);
        }
    }
}

bool same_memory(const at::Tensor &one, const at::Tensor &other)
{
    return one.numel() != 0 && other.numel() != 0 && one.storage().data() == other.storage().data();
}

} // namespace

struct Program::State {
    explicit State(const std::string &path, const Options &options);

    std::vector<Input> inputs;
    std::vector<std::string> outputs;
    std::vector<Leaf> leaves;
    std::vector<Symbol> symbols;
    std::map<std::string, size_t> symbol_at; /* by name, which is not the user's */
    std::vector<Relation> relations;
    std::vector<Giver> givers;
    std::vector<std::pair<bool, size_t>> results; /* whether of the plan, and which; else which input */
    std::map<std::string, WeightRow> rows;
    std::string target;
    std::unique_ptr<Library> library;
    std::unique_ptr<Plan> plan;

    mutable std::mutex lock;
    std::shared_ptr<const Weights> weights; /* replaced, never changed */

    void read_signature(const Json &facts);
    void check_plan() const;
    Weights fitting(const Weights &given) const;
    std::vector<Number> sizes_of(const std::vector<at::Tensor> &given) const;
    at::Tensor laid_out(size_t leaf, const at::Tensor &tensor, const std::vector<Number> &symbols) const;
};

Program::State::State(const std::string &path, const Options &options)
{
    const File file(path);
    const Json &facts = file.facts();
    check_machine(facts);
    read_signature(facts);
    if (options.weights == nullptr && !file.has("weights")) {
        throw Error("it was saved without weights, and none are given");
    }
    weights = std::make_shared<const Weights>(
        fitting(options.weights != nullptr ? *options.weights : file.tensors("weights", options.verify)));
    Weights constants = file.tensors("constants");
    for (const auto &[name, row] : facts["constants"].object()) {
        auto found = constants.find(name);
        if (found == constants.end()) {
            throw Error("the constant " + name + " is missing");
        }
        at::Tensor made = at::empty_strided(integers(row[1]), integers(row[2]), found->second.options());
        made.copy_(found->second);
        found->second = made;
    }
    Json data = parse_json(file.section("plan.json"));
    if (!data["kernels"].array().empty()) {
        target = best_target(facts["targets"]);
        library = std::make_unique<Library>(file.section("kernels/0." + target + ".so"));
    }
    plan = std::make_unique<Plan>(data, library.get(), constants);
    check_plan();
}

void Program::State::read_signature(const Json &facts)
{
    const Json &given = facts["inputs"];
    for (const auto &[name, row] : given["symbols"].object()) {
        std::optional<int64_t> high;
        if (!row[3].is_null()) {
            high = row[3].integer();
        }
        symbol_at.emplace(name, symbols.size());
        symbols.push_back({static_cast<size_t>(row[0].integer()), row[1].integer(), {row[4].text(), row[2].integer(), high}});
    }
    const Expression::Index index = [this](const std::string &name) {
        auto found = symbol_at.find(name);
        if (found == symbol_at.end()) {
            throw Error("not as dynajit writes it: a size of the unknown symbol " + name);
        }
        return found->second;
    };
    const auto expressions = [&index](const Json &trees) {
        std::vector<Expression> found;
        for (const Json &tree : trees.array()) {
            found.push_back(Expression::of_tree(tree, index));
        }
        return found;
    };
    for (const Json &row : given["leaves"].array()) {
        Input input{row[0].text(), dtype_named(row[1].text()), {}, row[4].boolean()};
        for (const Json &size : row[2].array()) {
            if (size.is_int()) {
                input.sizes.emplace_back(size.integer());
            }
            else if (size.is_text()) {
                input.sizes.emplace_back(symbols[index(size.text())].shown);
            }
            else {
                input.sizes.emplace_back(std::monostate());
            }
        }
        inputs.push_back(std::move(input));
        leaves.push_back({expressions(row[2]), expressions(row[3])});
        if (row[2].array().size() != row[3].array().size()) {
            throw Error("not as dynajit writes it: other strides than sizes");
        }
    }
    for (const Symbol &symbol : symbols) {
        if (symbol.leaf >= leaves.size() || symbol.dim < 0 ||
            static_cast<size_t>(symbol.dim) >= leaves[symbol.leaf].sizes.size()) {
            throw Error("not as dynajit writes it: no tensor tells " + symbol.shown.name);
        }
    }
    for (const Json &tree : given["relations"].array()) {
        relations.push_back({tree, Expression::of_tree(tree, index)});
    }
    for (const Json &row : facts["given"].array()) {
        Giver giver{row[0].text(), 0, {}};
        if (giver.kind == "leaf") {
            giver.at = static_cast<size_t>(row[1].integer());
        }
        else if (giver.kind == "size") {
            giver.at = index(row[1].text());
        }
        else {
            giver.name = row[1].text();
        }
        givers.push_back(std::move(giver));
    }
    for (const Json &row : facts["results"].array()) {
        results.emplace_back(row[0].text() == "graph", static_cast<size_t>(row[1].integer()));
    }
    for (const auto &[name, row] : facts["weights"].object()) {
        rows[name] = {dtype_named(row[0].text()), integers(row[1]), integers(row[2])};
    }
    add_names(facts["outputs"], "", outputs);
    if (outputs.size() != results.size()) {
        throw Error("not as dynajit writes it: its results are not those of its structure");
    }
}

void Program::State::check_plan() const
{
    bool fits = givers.size() == plan->inputs();
    for (size_t i = 0; fits && i < givers.size(); i++) {
        const Giver &giver = givers[i];
        fits = giver.kind == "leaf"     ? giver.at < leaves.size() && plan->is_tensor(i)
               : giver.kind == "weight" ? rows.count(giver.name) != 0 && plan->is_tensor(i)
                                        : giver.kind == "size" && !plan->is_tensor(i);
    }
    for (const auto &[of_plan, at] : results) {
        fits = fits && at < (of_plan ? plan->outputs() : givers.size());
    }
    if (!fits) {
        throw Error("not as dynajit writes it: its inputs or results are not those of its plan");
    }
}

Weights Program::State::fitting(const Weights &given) const
{
    Weights found;
    for (const auto &[name, row] : rows) {
        auto one = given.find(name);
        if (one == given.end()) {
            throw Error("the weight " + name + " is missing: expected is " + shown(row.dtype, row.sizes));
        }
        const at::Tensor &tensor = one->second;
        if (!tensor.defined() || tensor.scalar_type() != row.dtype || tensor.sizes() != at::IntArrayRef(row.sizes) ||
            !tensor.device().is_cpu()) {
            throw Error("the weight " + name + " is " +
                        (tensor.defined() ? shown(tensor.scalar_type(), tensor.sizes()) : "no tensor") + "; expected is " +
                        shown(row.dtype, row.sizes) + " on cpu");
        }
        at::Tensor kept = tensor.detach();
        if (tensor.strides() != at::IntArrayRef(row.strides)) {
            kept = at::empty_strided(row.sizes, row.strides, tensor.options().requires_grad(false));
            kept.copy_(tensor.detach());
        }
        found.emplace(name, kept);
    }
    return found;
}

std::vector<Number> Program::State::sizes_of(const std::vector<at::Tensor> &given) const
{
    if (given.size() != leaves.size()) {
        throw Error(std::to_string(given.size()) + " tensors are given; expected are " + std::to_string(leaves.size()));
    }
    for (size_t i = 0; i < given.size(); i++) {
        const at::Tensor &tensor = given[i];
        const Input &input = inputs[i];
        bool fits = tensor.defined() && tensor.layout() == at::kStrided && tensor.device().is_cpu() && !tensor.is_conj() &&
                    !tensor.is_neg() && tensor.scalar_type() == input.dtype &&
                    static_cast<size_t>(tensor.dim()) == input.sizes.size();
        for (size_t dim = 0; fits && dim < input.sizes.size(); dim++) {
            const int64_t *fixed = std::get_if<int64_t>(&input.sizes[dim]);
            fits = fixed == nullptr || *fixed == tensor.size(static_cast<int64_t>(dim));
        }
        if (!fits) {
            std::string wanted = shown(input.dtype, {});
            wanted.pop_back();
            for (size_t dim = 0; dim < input.sizes.size(); dim++) {
                const int64_t *fixed = std::get_if<int64_t>(&input.sizes[dim]);
                const Varying *varying = std::get_if<Varying>(&input.sizes[dim]);
                wanted += (dim != 0 ? ", " : "") + (fixed != nullptr     ? std::to_string(*fixed)
                                                    : varying != nullptr ? varying->name
                                                                         : "?");
            }
            throw Error(input.name + ": " + (tensor.defined() ? shown(tensor.scalar_type(), tensor.sizes()) : "no tensor") +
                        " is given; expected is " + wanted + "] on cpu");
        }
    }
    std::vector<Number> found;
    for (const Symbol &symbol : symbols) {
        int64_t size = given[symbol.leaf].size(symbol.dim);
        const Varying &bounds = symbol.shown;
        if (size < bounds.low || (bounds.high.has_value() && size > *bounds.high)) {
            std::string bound = bounds.high.has_value() ? std::to_string(bounds.low) + " to " + std::to_string(*bounds.high)
                                                        : "at least " + std::to_string(bounds.low);
            throw Error(inputs[symbol.leaf].name + ": size " + std::to_string(size) + " in dimension " +
                        std::to_string(symbol.dim) + " (" + bounds.name + "); expected is " + bound);
        }
        found.emplace_back(size);
    }
    return found;
}

/* The tensor, or a copy with the strides that the plan is for. */
at::Tensor Program::State::laid_out(size_t leaf, const at::Tensor &tensor, const std::vector<Number> &symbols) const
{
    std::vector<int64_t> sizes, strides;
    for (size_t dim = 0; dim < leaves[leaf].sizes.size(); dim++) {
        sizes.push_back(int_of(leaves[leaf].sizes[dim].value(symbols)));
        strides.push_back(int_of(leaves[leaf].strides[dim].value(symbols)));
    }
    if (tensor.sizes() != at::IntArrayRef(sizes)) {
        throw Error(inputs[leaf].name + ": " + shown(tensor.scalar_type(), tensor.sizes()) + " is given; expected is " +
                    shown(tensor.scalar_type(), sizes));
    }
    bool same = true;
    for (size_t dim = 0; dim < sizes.size(); dim++) {
        same = same && (tensor.numel() == 0 || sizes[dim] == 1 || tensor.strides()[dim] == strides[dim]);
    }
    if (same) {
        return tensor.detach();
    }
    if (inputs[leaf].written) {
        throw Error(inputs[leaf].name + " is written, and has other strides than the program was exported for");
    }
    at::Tensor copy = at::empty_strided(sizes, strides, tensor.options().requires_grad(false));
    copy.copy_(tensor.detach());
    return copy;
}

Program::Program(const std::string &path, const Options &options)
{
    try {
        state_ = std::make_shared<State>(path, options);
    }
    catch (const Error &error) {
        throw Error(path + ": " + error.what());
    }
}

const std::vector<Input> &Program::inputs() const
{
    return state_->inputs;
}

const std::vector<std::string> &Program::outputs() const
{
    return state_->outputs;
}

const std::string &Program::target() const
{
    return state_->target;
}

Weights Program::weights() const
{
    const std::lock_guard<std::mutex> held(state_->lock);
    return *state_->weights;
}

void Program::set_weights(const Weights &given)
{
    auto made = std::make_shared<const Weights>(state_->fitting(given));
    const std::lock_guard<std::mutex> held(state_->lock);
    state_->weights = std::move(made);
}

std::vector<at::Tensor> Program::run(const std::vector<at::Tensor> &given) const
{
    const State &state = *state_;
    std::shared_ptr<const Weights> weights;
    {
        const std::lock_guard<std::mutex> held(state.lock);
        weights = state.weights;
    }
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const std::vector<Number> sizes = state.sizes_of(given);
    for (const Relation &relation : state.relations) {
        if (int_of(relation.expression.value(sizes)) == 0) {
            throw Error("expected is " + tree_text(relation.tree, [&state](const std::string &name) {
                            const Symbol &symbol = state.symbols[state.symbol_at.at(name)];
                            return state.inputs[symbol.leaf].name + ".size(" + std::to_string(symbol.dim) + ")";
                        }));
        }
    }
    std::vector<at::Tensor> leaves;
    for (size_t i = 0; i < given.size(); i++) {
        leaves.push_back(state.laid_out(i, given[i], sizes));
    }
    for (size_t i = 0; i < leaves.size(); i++) {
        for (size_t j = 0; state.inputs[i].written && j < leaves.size(); j++) {
            if (i != j && same_memory(leaves[i], leaves[j])) {
                throw Error(state.inputs[i].name + " is written and shares memory with " + state.inputs[j].name);
            }
        }
    }
    std::vector<Plan::Given> taken;
    for (const Giver &giver : state.givers) {
        if (giver.kind == "size") {
            taken.emplace_back(sizes[giver.at]);
        }
        else {
            taken.emplace_back(giver.kind == "leaf" ? leaves[giver.at] : weights->at(giver.name));
        }
    }
    const std::vector<at::Tensor> made = state.plan->run(taken);
    std::vector<at::Tensor> found;
    for (const auto &[of_plan, at] : state.results) {
        found.push_back(of_plan ? made[at] : std::get<at::Tensor>(taken[at]));
    }
    return found;
}

} // namespace dynajit
