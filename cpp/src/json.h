/* JSON as the files of exported programs have it.
 *
 * In: text. Out: `parse_json(text)`: a tree of `Json`, whose accessors throw Error where something else is there. */
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "dynajit/runtime.h"

namespace dynajit {

class Json {
public:
    using Array = std::vector<Json>;
    using Object = std::vector<std::pair<std::string, Json>>;

    std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value;

    bool is_null() const { return std::holds_alternative<std::monostate>(value); }
    bool is_text() const { return std::holds_alternative<std::string>(value); }
    bool is_int() const { return std::holds_alternative<int64_t>(value); }
    bool is_array() const { return std::holds_alternative<Array>(value); }
    bool boolean() const { return get<bool>("a truth value"); }
    int64_t integer() const { return get<int64_t>("an integer"); }
    double number() const { return is_int() ? static_cast<double>(integer()) : get<double>("a number"); }
    const std::string &text() const { return get<std::string>("a text"); }
    const Array &array() const { return get<Array>("a list"); }
    const Object &object() const { return get<Object>("an object"); }

    const Json &operator[](size_t at) const;
    const Json &operator[](std::string_view name) const;
    const Json *find(std::string_view name) const;

    /* The kind that a list begins with, as ["ref", "t1"]; empty for what is no list. */
    std::string kind() const;

private:
    template <typename T> const T &get(const char *what) const
    {
        const T *found = std::get_if<T>(&value);
        if (found == nullptr) {
            throw Error(std::string("not as dynajit writes it: expected is ") + what);
        }
        return *found;
    }
};

Json parse_json(std::string_view text);

} // namespace dynajit
