/* Serves an exported program from several threads, without Python.
 *
 *     serve model.djt [threads] [calls]
 *
 * Prints the signature, and how many calls a second all threads made; checks that all of them got the same. */
#include <atomic>
#include <chrono>
#include <iostream>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

#include "dynajit/runtime.h"

namespace {

/* Ones, of the least size that each dimension may have. */
at::Tensor made_up(const dynajit::Input &input)
{
    std::vector<int64_t> sizes;
    for (const auto &size : input.sizes) {
        const auto *varying = std::get_if<dynajit::Varying>(&size);
        const auto *fixed = std::get_if<int64_t>(&size);
        sizes.push_back(fixed != nullptr ? *fixed : varying != nullptr ? std::max<int64_t>(varying->low, 2) : 2);
    }
    return at::ones(sizes, at::TensorOptions(input.dtype));
}

} // namespace

int main(int count, char **arguments)
{
    if (count < 2) {
        std::cerr << "usage: serve model.djt [threads] [calls]\n";
        return 2;
    }
    const int threads = count > 2 ? std::stoi(arguments[2]) : 8, calls = count > 3 ? std::stoi(arguments[3]) : 100;
    try {
        const dynajit::Program program(arguments[1]);
        std::vector<at::Tensor> given;
        for (const dynajit::Input &input : program.inputs()) {
            given.push_back(made_up(input));
            std::cout << "takes " << input.name << ": " << c10::toString(input.dtype) << given.back().sizes() << "\n";
        }
        const std::vector<at::Tensor> expected = program.run(given);
        for (size_t i = 0; i < expected.size(); i++) {
            const std::string &name = program.outputs()[i];
            std::cout << "gives " << (name.empty() ? "a tensor" : name) << ": " << c10::toString(expected[i].scalar_type())
                      << expected[i].sizes() << "\n";
        }
        std::atomic<int> others{0}, failed{0};
        std::vector<std::thread> workers;
        const auto begin = std::chrono::steady_clock::now();
        for (int worker = 0; worker < threads; worker++) {
            workers.emplace_back([&] {
                at::set_num_threads(1);
                try {
                    for (int call = 0; call < calls; call++) {
                        const std::vector<at::Tensor> found = program.run(given);
                        for (size_t i = 0; i < found.size(); i++) {
                            others += at::equal(found[i], expected[i]) ? 0 : 1;
                        }
                    }
                }
                catch (const std::exception &) {
                    failed++;
                }
            });
        }
        for (std::thread &worker : workers) {
            worker.join();
        }
        const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
        std::cout << threads * calls / spent.count() << " calls a second from " << threads << " threads, " << others
                  << " results differ, " << failed << " threads failed\n";
        return others == 0 && failed == 0 ? 0 : 1;
    }
    catch (const std::exception &error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
