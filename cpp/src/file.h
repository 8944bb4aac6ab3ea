/* The file of an exported program: sections that are checked before anything in them is believed.
 *
 * In: a path. Out: `File`: the facts, sections, and tensors in the safetensors format that share the file's memory.
 * `dynajit/runtime/container.py` and `dynajit/exported/weights.py` say what the bytes are. */
#pragma once

#include <memory>
#include <string_view>

#include "json.h"

namespace dynajit {

class File {
public:
    explicit File(const std::string &path);

    const Json &facts() const { return header_["facts"]; }
    bool has(std::string_view name) const { return header_["sections"].find(name) != nullptr; }
    std::string_view section(std::string_view name, bool verify = true) const;

    /* Tensors whose memory is the file's: a page that is written becomes this process's own. */
    Weights tensors(std::string_view name, bool verify = true) const;

private:
    std::shared_ptr<char> memory_; /* what tensors are in, and so lives as long as they do */
    size_t size_ = 0;
    Json header_;
};

/* The dtype that torch calls by this name. */
at::ScalarType dtype_named(const std::string &name);

/* "float32[2, 3]", as Python's messages have it. */
std::string shown(at::ScalarType dtype, at::IntArrayRef sizes);

} // namespace dynajit
