/* For the tests: calls of exported programs without Python.
 *
 *     call_program load FILE...                        one line for each: "fine", or why it can't be loaded
 *     call_program target FILE...                      the same, with the target whose kernels run in place of "fine"
 *     call_program run FILE IN OUT [WEIGHTS]           IN: the tensors of each call, as torch.save has lists of lists;
 *                                                      OUT: the results. WEIGHTS: what set_weights is given after the
 *                                                      first call, as a dictionary */
#include <fstream>
#include <iostream>
#include <iterator>

#include <torch/serialize.h>

#include "dynajit/runtime.h"

namespace {

c10::IValue read(const char *path)
{
    std::ifstream file(path, std::ios::binary);
    return torch::pickle_load(std::vector<char>((std::istreambuf_iterator<char>(file)), {}));
}

int run(int count, char **arguments)
{
    dynajit::Program program(arguments[2]);
    c10::List<std::vector<at::Tensor>> found;
    const c10::IValue calls = read(arguments[3]);
    for (const c10::IValue &call : calls.toListRef()) {
        std::vector<at::Tensor> given;
        for (const c10::IValue &tensor : call.toListRef()) {
            given.push_back(tensor.toTensor());
        }
        found.push_back(program.run(given));
        if (found.size() == 1 && count > 5) {
            dynajit::Weights weights;
            const c10::IValue named = read(arguments[5]);
            for (const auto &item : named.toGenericDict()) {
                weights.emplace(item.key().toStringRef(), item.value().toTensor());
            }
            program.set_weights(weights);
        }
    }
    std::vector<char> bytes = torch::pickle_save(found);
    std::ofstream(arguments[4], std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    for (const std::string &name : program.outputs()) {
        std::cout << name << "\n";
    }
    return 0;
}

} // namespace

int main(int count, char **arguments)
{
    if (count > 4 && std::string(arguments[1]) == "run") {
        try {
            return run(count, arguments);
        }
        catch (const std::exception &error) {
            std::cerr << error.what() << "\n";
            return 1;
        }
    }
    for (int i = 2; i < count; i++) {
        try {
            dynajit::Program program(arguments[i]);
            std::cout << (std::string(arguments[1]) == "target" ? program.target() : "fine") << "\n";
        }
        catch (const std::exception &error) {
            std::string text = error.what();
            std::cout << text.substr(0, text.find('\n')) << "\n";
        }
    }
    return 0;
}
