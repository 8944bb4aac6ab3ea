#include "json.h"

#include <charconv>
#include <cstdlib>

namespace dynajit {

namespace {

constexpr int MAX_DEPTH = 200;

class Parser {
public:
    explicit Parser(std::string_view text) : text_(text) {}

    Json whole()
    {
        Json found = value(0);
        space();
        if (at_ != text_.size()) {
            fail();
        }
        return found;
    }

private:
    [[noreturn]] static void fail() { throw Error("not as dynajit writes it: no JSON"); }

    void space()
    {
        while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) {
            at_++;
        }
    }

    char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }

    bool take(std::string_view word)
    {
        if (text_.substr(at_, word.size()) != word) {
            return false;
        }
        at_ += word.size();
        return true;
    }

    Json value(int depth)
    {
        if (depth > MAX_DEPTH) {
            fail();
        }
        space();
        if (next() == '{') {
            return object(depth);
        }
        if (next() == '[') {
            return array(depth);
        }
        if (next() == '"') {
            return {string()};
        }
        if (take("null")) {
            return {};
        }
        if (take("true")) {
            return {true};
        }
        if (take("false")) {
            return {false};
        }
        return number();
    }

    /* What is between the brackets, with commas between; `one` reads an item. */
    template <typename One> void items(std::string_view close, One &&one)
    {
        at_++;
        space();
        for (bool first = true; !take(close); first = false) {
            if (!first && !take(",")) {
                fail();
            }
            one();
            space();
        }
    }

    Json object(int depth)
    {
        Json::Object found;
        items("}", [&] {
            space();
            std::string name = string();
            space();
            if (!take(":")) {
                fail();
            }
            found.emplace_back(std::move(name), value(depth + 1));
        });
        return {std::move(found)};
    }

    Json array(int depth)
    {
        Json::Array found;
        items("]", [&] { found.push_back(value(depth + 1)); });
        return {std::move(found)};
    }

    unsigned code_unit()
    {
        unsigned unit = 0;
        const char *begin = text_.data() + at_;
        if (at_ + 4 > text_.size() || std::from_chars(begin, begin + 4, unit, 16).ptr != begin + 4) {
            fail();
        }
        at_ += 4;
        return unit;
    }

    static void append_utf8(std::string &to, unsigned code)
    {
        auto byte = [&to](unsigned bits) { to.push_back(static_cast<char>(bits)); };
        if (code < 0x80) {
            byte(code);
        }
        else if (code < 0x800) {
            byte(0xC0 | code >> 6);
            byte(0x80 | (code & 0x3F));
        }
        else if (code < 0x10000) {
            byte(0xE0 | code >> 12);
            byte(0x80 | (code >> 6 & 0x3F));
            byte(0x80 | (code & 0x3F));
        }
        else {
            byte(0xF0 | code >> 18);
            byte(0x80 | (code >> 12 & 0x3F));
            byte(0x80 | (code >> 6 & 0x3F));
            byte(0x80 | (code & 0x3F));
        }
    }

    std::string string()
    {
        if (!take("\"")) {
            fail();
        }
        std::string found;
        while (next() != '"') {
            if (at_ >= text_.size()) {
                fail();
            }
            char one = text_[at_++];
            if (one != '\\') {
                found.push_back(one);
                continue;
            }
            constexpr std::string_view escapes = "\"\\/bfnrtu", meant = "\"\\/\b\f\n\r\t";
            size_t which = at_ < text_.size() ? escapes.find(text_[at_]) : std::string_view::npos;
            if (which == std::string_view::npos) {
                fail();
            }
            at_++;
            if (which < meant.size()) {
                found.push_back(meant[which]);
                continue;
            }
            unsigned code = code_unit();
            if (code >= 0xD800 && code < 0xDC00 && take("\\u")) {
                code = 0x10000 + ((code - 0xD800) << 10) + (code_unit() - 0xDC00);
            }
            append_utf8(found, code);
        }
        at_++;
        return found;
    }

    Json number()
    {
        size_t end = text_.find_first_not_of("+-.0123456789eE", at_);
        std::string digits(text_.substr(at_, end == std::string_view::npos ? end : end - at_));
        if (digits.empty()) {
            fail();
        }
        at_ += digits.size();
        const char *last = digits.data() + digits.size();
        if (digits.find_first_of(".eE") == std::string::npos) {
            int64_t found = 0;
            auto [ptr, error] = std::from_chars(digits.data(), last, found);
            if (ptr != last || error != std::errc()) {
                fail();
            }
            return {found};
        }
        char *stop = nullptr;
        double found = std::strtod(digits.c_str(), &stop);
        if (stop != last) {
            fail();
        }
        return {found};
    }

    std::string_view text_;
    size_t at_ = 0;
};

} // namespace

const Json &Json::operator[](size_t at) const
{
    const Array &items = array();
    if (at >= items.size()) {
        throw Error("not as dynajit writes it: a list is too short");
    }
    return items[at];
}

const Json *Json::find(std::string_view name) const
{
    for (const auto &[key, item] : object()) {
        if (key == name) {
            return &item;
        }
    }
    return nullptr;
}

const Json &Json::operator[](std::string_view name) const
{
    const Json *found = find(name);
    if (found == nullptr) {
        throw Error("not as dynajit writes it: " + std::string(name) + " is missing");
    }
    return *found;
}

std::string Json::kind() const
{
    const Array *items = std::get_if<Array>(&value);
    return items != nullptr && !items->empty() && items->front().is_text() ? items->front().text() : std::string();
}

Json parse_json(std::string_view text)
{
    return Parser(text).whole();
}

} // namespace dynajit
