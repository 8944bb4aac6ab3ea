#include "file.h"

#include <array>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

namespace dynajit {

namespace {

constexpr char MAGIC[] = "DYNAJIT"; /* and its final zero */
constexpr uint32_t FORMAT = 2;
constexpr size_t PREFIX = 40, DIGEST = 32, START = PREFIX + DIGEST;

/* SHA-256, FIPS 180-4. */
class Sha256 {
public:
    Sha256 &add(std::string_view bytes)
    {
        length_ += bytes.size();
        while (!bytes.empty()) {
            size_t count = std::min(bytes.size(), block_.size() - filled_);
            std::memcpy(block_.data() + filled_, bytes.data(), count);
            filled_ += count;
            bytes.remove_prefix(count);
            if (filled_ == block_.size()) {
                mix();
                filled_ = 0;
            }
        }
        return *this;
    }

    std::string digest()
    {
        uint64_t bits = length_ * 8;
        std::string rest(1 + (119 - length_ % 64) % 64, '\0');
        rest[0] = '\x80';
        for (int shift = 56; shift >= 0; shift -= 8) {
            rest.push_back(static_cast<char>(bits >> shift));
        }
        add(rest);
        std::string found;
        for (uint32_t word : state_) {
            for (int shift = 24; shift >= 0; shift -= 8) {
                found.push_back(static_cast<char>(word >> shift));
            }
        }
        return found;
    }

private:
    static uint32_t turned(uint32_t word, int count) { return word >> count | word << (32 - count); }

    void mix()
    {
        static constexpr std::array<uint32_t, 64> K = {
            0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
            0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
            0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
            0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
            0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
            0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
            0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
            0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
        std::array<uint32_t, 64> w;
        for (size_t i = 0; i < 16; i++) {
            w[i] = 0;
            for (size_t j = 0; j < 4; j++) {
                w[i] = w[i] << 8 | block_[4 * i + j];
            }
        }
        for (size_t i = 16; i < 64; i++) {
            uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + w[i - 7] + (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
        }
        auto [a, b, c, d, e, f, g, h] = state_;
        for (size_t i = 0; i < 64; i++) {
            uint32_t one = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i];
            uint32_t two = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
            h = g;
            g = f;
            f = e;
            e = d + one;
            d = c;
            c = b;
            b = a;
            a = one + two;
        }
        const std::array<uint32_t, 8> mixed = {a, b, c, d, e, f, g, h};
        for (size_t i = 0; i < 8; i++) {
            state_[i] += mixed[i];
        }
    }

    std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<uint8_t, 64> block_{};
    size_t filled_ = 0;
    uint64_t length_ = 0;
};

std::string in_hex(const std::string &bytes)
{
    std::string found;
    for (unsigned char byte : bytes) {
        found.push_back("0123456789abcdef"[byte >> 4]);
        found.push_back("0123456789abcdef"[byte & 15]);
    }
    return found;
}

struct Dtype {
    const char *torch;
    const char *safetensors;
    at::ScalarType type;
};

constexpr Dtype DTYPES[] = {
    {"float64", "F64", at::kDouble},      {"float32", "F32", at::kFloat},       {"float16", "F16", at::kHalf},
    {"bfloat16", "BF16", at::kBFloat16},  {"bool", "BOOL", at::kBool},          {"int64", "I64", at::kLong},
    {"int32", "I32", at::kInt},           {"int16", "I16", at::kShort},         {"int8", "I8", at::kChar},
    {"uint8", "U8", at::kByte},           {"complex64", "C64", at::kComplexFloat}, {"complex128", "", at::kComplexDouble},
    {"float8_e4m3fn", "F8_E4M3", at::kFloat8_e4m3fn}, {"float8_e5m2", "F8_E5M2", at::kFloat8_e5m2},
};

template <typename T> T little(std::string_view bytes, size_t at)
{
    T found;
    std::memcpy(&found, bytes.data() + at, sizeof found);
    return found;
}

} // namespace

at::ScalarType dtype_named(const std::string &name)
{
    for (const Dtype &row : DTYPES) {
        if (name == row.torch) {
            return row.type;
        }
    }
    throw Error("a tensor of dtype " + name + ", which this runtime does not know");
}

std::string shown(at::ScalarType dtype, at::IntArrayRef sizes)
{
    std::string found = "?";
    for (const Dtype &row : DTYPES) {
        found = row.type == dtype ? row.torch : found;
    }
    found += "[";
    for (size_t i = 0; i < sizes.size(); i++) {
        found += (i != 0 ? ", " : "") + std::to_string(sizes[i]);
    }
    return found + "]";
}

File::File(const std::string &path)
{
    int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (file < 0 || fstat(file, &status) != 0) {
        std::string why = std::strerror(errno);
        if (file >= 0) {
            close(file);
        }
        throw Error("it can't be read: " + why);
    }
    size_ = static_cast<size_t>(status.st_size);
    if (size_ < START) {
        close(file);
        throw Error("it is no exported program: it has " + std::to_string(size_) + " bytes");
    }
    void *mapped = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    close(file);
    if (mapped == MAP_FAILED) {
        throw Error(std::string("it can't be mapped into memory: ") + std::strerror(errno));
    }
    memory_ = std::shared_ptr<char>(static_cast<char *>(mapped), [size = size_](char *at) { munmap(at, size); });
    std::string_view all(memory_.get(), size_);
    std::string kind(all.substr(8, 16).data(), strnlen(all.data() + 8, 16));
    if (all.substr(0, 8) != std::string_view(MAGIC, 8) || kind != "program") {
        throw Error("it is no exported program of dynajit's");
    }
    if (little<uint32_t>(all, 24) != FORMAT) {
        throw Error("it has format " + std::to_string(little<uint32_t>(all, 24)) + "; this runtime reads format " +
                    std::to_string(FORMAT));
    }
    uint64_t length = little<uint32_t>(all, 28), end = little<uint64_t>(all, 32);
    if (end != size_ || length > size_ - START) {
        throw Error("it has " + std::to_string(size_) + " bytes; expected are " + std::to_string(end));
    }
    std::string_view text = all.substr(START, length);
    if (Sha256().add(all.substr(0, PREFIX)).add(text).digest() != all.substr(PREFIX, DIGEST)) {
        throw Error("its header is damaged: the checksum is not the one written with it");
    }
    header_ = parse_json(text);
}

std::string_view File::section(std::string_view name, bool verify) const
{
    const Json &row = header_["sections"][name];
    auto begin = static_cast<uint64_t>(row[0].integer()), size = static_cast<uint64_t>(row[1].integer());
    if (begin > size_ || size > size_ - begin) {
        throw Error("its section " + std::string(name) + " lies outside of the file");
    }
    std::string_view found(memory_.get() + begin, size);
    if (verify && in_hex(Sha256().add(found).digest()) != row[2].text()) {
        throw Error("its section " + std::string(name) + " is damaged: the checksum is not the one written with it");
    }
    return found;
}

Weights File::tensors(std::string_view name, bool verify) const
{
    std::string_view bytes = section(name, verify);
    if (bytes.size() < 8 || little<uint64_t>(bytes, 0) > bytes.size() - 8) {
        throw Error("its tensors are not in the safetensors format");
    }
    uint64_t length = little<uint64_t>(bytes, 0);
    Json header = parse_json(bytes.substr(8, length));
    std::string_view data = bytes.substr(8 + length);
    Weights found;
    for (const auto &[key, row] : header.object()) {
        if (key == "__metadata__") {
            continue;
        }
        const Dtype *dtype = nullptr;
        for (const Dtype &one : DTYPES) {
            dtype = row["dtype"].text() == one.safetensors ? &one : dtype;
        }
        std::vector<int64_t> sizes;
        uint64_t elements = dtype != nullptr ? c10::elementSize(dtype->type) : 0;
        bool fits = elements != 0;
        for (const Json &size : row["shape"].array()) {
            sizes.push_back(size.integer());
            fits = fits && sizes.back() >= 0 && !__builtin_mul_overflow(elements, static_cast<uint64_t>(sizes.back()), &elements);
        }
        auto begin = static_cast<uint64_t>(row["data_offsets"][0].integer());
        auto end = static_cast<uint64_t>(row["data_offsets"][1].integer());
        if (!fits || begin > end || end > data.size() || end - begin != elements) {
            throw Error("the tensor " + key + " lies outside of the file, or is of an unknown dtype");
        }
        char *memory = const_cast<char *>(data.data()) + begin;
        at::Tensor tensor = at::from_blob(memory, sizes, [keep = memory_](void *) {}, at::TensorOptions(dtype->type));
        bool aligned = reinterpret_cast<uintptr_t>(memory) % c10::elementSize(dtype->type) == 0;
        found.emplace(key, aligned ? tensor : tensor.clone());
    }
    return found;
}

} // namespace dynajit
