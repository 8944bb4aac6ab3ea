#include "sizes.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>

#include <c10/util/SmallVector.h>

namespace dynajit {

namespace {

[[noreturn]] void overflow()
{
    throw Error("a size has more than 63 bits");
}

bool is_int(Number number)
{
    return std::holds_alternative<int64_t>(number);
}

bool truth(Number number)
{
    return is_int(number) ? int_of(number) != 0 : float_of(number) != 0;
}

int64_t whole(double number)
{
    if (!(number >= -9223372036854775808.0 && number < 9223372036854775808.0)) {
        overflow();
    }
    return static_cast<int64_t>(number);
}

Number add(Number a, Number b)
{
    int64_t found = 0;
    if (!is_int(a) || !is_int(b)) {
        return float_of(a) + float_of(b);
    }
    if (__builtin_add_overflow(int_of(a), int_of(b), &found)) {
        overflow();
    }
    return found;
}

Number multiply(Number a, Number b)
{
    int64_t found = 0;
    if (!is_int(a) || !is_int(b)) {
        return float_of(a) * float_of(b);
    }
    if (__builtin_mul_overflow(int_of(a), int_of(b), &found)) {
        overflow();
    }
    return found;
}

void check_divisor(Number b)
{
    if (!truth(b)) {
        throw Error("a size is divided by zero");
    }
}

Number modulo(Number a, Number b);

Number floor_divide(Number a, Number b)
{
    check_divisor(b);
    if (!is_int(a) || !is_int(b)) {
        /* a divided by b would be rounded, perhaps to the next whole number */
        double found = (float_of(a) - float_of(modulo(a, b))) / float_of(b), below = std::floor(found);
        return found - below > 0.5 ? below + 1 : below;
    }
    int64_t by = int_of(b);
    if (by == -1) {
        return multiply(a, b);
    }
    int64_t found = int_of(a) / by;
    return found - ((int_of(a) % by != 0 && (int_of(a) < 0) != (by < 0)) ? 1 : 0);
}

Number modulo(Number a, Number b)
{
    check_divisor(b);
    if (!is_int(a) || !is_int(b)) {
        double found = std::fmod(float_of(a), float_of(b));
        return found != 0 && (found < 0) != (float_of(b) < 0) ? found + float_of(b) : found;
    }
    return int_of(a) - int_of(multiply(floor_divide(a, b), b));
}

Number true_divide(Number a, Number b)
{
    check_divisor(b);
    return float_of(a) / float_of(b);
}

Number power(Number a, Number b)
{
    if (!is_int(a) || !is_int(b) || int_of(b) < 0) {
        return std::pow(float_of(a), float_of(b));
    }
    Number found = int64_t{1};
    for (int64_t i = 0; i < int_of(b); i++) {
        found = multiply(found, a);
    }
    return found;
}

int compare(Number a, Number b)
{
    if (is_int(a) && is_int(b)) {
        return (int_of(a) > int_of(b)) - (int_of(a) < int_of(b));
    }
    return (float_of(a) > float_of(b)) - (float_of(a) < float_of(b));
}

template <Number (*F)(Number, Number)> Number of_two(const Number *x, size_t)
{
    return F(x[0], x[1]);
}

template <double (*F)(double)> Number of_math(const Number *x, size_t)
{
    return F(float_of(x[0]));
}

template <double (*F)(double)> Number whole_of(const Number *x, size_t)
{
    return is_int(x[0]) ? x[0] : Number(whole(F(float_of(x[0]))));
}

/* The least number for SIGN -1, the greatest for 1. */
template <int SIGN> Number extreme(const Number *x, size_t count)
{
    Number found = x[0];
    for (size_t i = 1; i < count; i++) {
        found = compare(x[i], found) * SIGN > 0 ? x[i] : found;
    }
    return found;
}

Number shifted(const Number *x, bool left)
{
    int64_t by = int_of(x[1]);
    if (by < 0 || by > 62) {
        overflow();
    }
    return left ? multiply(x[0], int64_t{1} << by) : Number(int_of(x[0]) >> by);
}

Number float_bits(const Number *x, size_t)
{
    int64_t found = 0;
    double number = float_of(x[0]);
    std::memcpy(&found, &number, sizeof found);
    return found;
}

Number absolute(const Number *x, size_t)
{
    return is_int(x[0]) ? Number(std::abs(int_of(x[0]))) : Number(std::fabs(float_of(x[0])));
}

/* The first number is a limit, which the others have to be below. */
Number small(const Number *x, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        if (compare(absolute(x + i, 1), x[0]) >= 0) {
            throw Error("a number that a kernel computes with has more bits than the kernel has for it");
        }
    }
    return int64_t{0};
}

struct Operation {
    std::string_view name;
    size_t count; /* of numbers; 0: one or more */
    Expression::Function function;
};

/* By their names in trees; text has some under others. */
const Operation OPERATIONS[] = {
    {"add", 2, of_two<add>},
    {"sub", 2, [](const Number *x, size_t) { return add(x[0], multiply(x[1], int64_t{-1})); }},
    {"mul", 2, of_two<multiply>},
    {"floordiv", 2, of_two<floor_divide>},
    {"mod", 2, of_two<modulo>},
    {"pow", 2, of_two<power>},
    {"truediv", 2, of_two<true_divide>},
    {"copysign", 2, [](const Number *x, size_t) { return Number(std::copysign(float_of(x[0]), float_of(x[1]))); }},
    {"bitand", 2, [](const Number *x, size_t) { return Number(int_of(x[0]) & int_of(x[1])); }},
    {"bitor", 2, [](const Number *x, size_t) { return Number(int_of(x[0]) | int_of(x[1])); }},
    {"bitxor", 2, [](const Number *x, size_t) { return Number(int_of(x[0]) ^ int_of(x[1])); }},
    {"lshift", 2, [](const Number *x, size_t) { return shifted(x, true); }},
    {"rshift", 2, [](const Number *x, size_t) { return shifted(x, false); }},
    {"eq", 2, [](const Number *x, size_t) { return Number(int64_t{compare(x[0], x[1]) == 0}); }},
    {"ne", 2, [](const Number *x, size_t) { return Number(int64_t{compare(x[0], x[1]) != 0}); }},
    {"lt", 2, [](const Number *x, size_t) { return Number(int64_t{compare(x[0], x[1]) < 0}); }},
    {"le", 2, [](const Number *x, size_t) { return Number(int64_t{compare(x[0], x[1]) <= 0}); }},
    {"gt", 2, [](const Number *x, size_t) { return Number(int64_t{compare(x[0], x[1]) > 0}); }},
    {"ge", 2, [](const Number *x, size_t) { return Number(int64_t{compare(x[0], x[1]) >= 0}); }},
    {"not", 1, [](const Number *x, size_t) { return Number(int64_t{!truth(x[0])}); }},
    {"bool", 1, [](const Number *x, size_t) { return Number(int64_t{truth(x[0])}); }},
    {"float", 1, [](const Number *x, size_t) { return Number(float_of(x[0])); }},
    {"abs", 1, absolute},
    {"int", 1, whole_of<std::trunc>},
    {"trunc", 1, whole_of<std::trunc>},
    {"floor", 1, whole_of<std::floor>},
    {"ceil", 1, whole_of<std::ceil>},
    {"round", 1, whole_of<std::nearbyint>}, /* half to even, as Python's */
    {"float_bits", 1, float_bits},
    {"min", 0, extreme<-1>},
    {"max", 0, extreme<1>},
    {"math.sqrt", 1, of_math<std::sqrt>},
    {"math.cos", 1, of_math<std::cos>},
    {"math.cosh", 1, of_math<std::cosh>},
    {"math.sin", 1, of_math<std::sin>},
    {"math.sinh", 1, of_math<std::sinh>},
    {"math.tan", 1, of_math<std::tan>},
    {"math.tanh", 1, of_math<std::tanh>},
    {"math.asin", 1, of_math<std::asin>},
    {"math.acos", 1, of_math<std::acos>},
    {"math.atan", 1, of_math<std::atan>},
    {"math.exp", 1, of_math<std::exp>},
    {"math.log", 1, of_math<std::log>},
    {"math.log2", 1, of_math<std::log2>},
    {"math.asinh", 1, of_math<std::asinh>},
};

} // namespace

void Expression::number(Number value)
{
    parts_.push_back({Kind::NUMBER, 0, value, nullptr});
}

void Expression::symbol(size_t at)
{
    parts_.push_back({Kind::SYMBOL, at, int64_t{0}, nullptr});
}

void Expression::call(Function function, size_t count)
{
    parts_.push_back({Kind::CALL, count, int64_t{0}, function});
}

void Expression::call(std::string_view name, size_t count)
{
    for (const Operation &operation : OPERATIONS) {
        if (name == operation.name) {
            if (operation.count == 0 ? count == 0 : count != operation.count) {
                throw Error("not as dynajit writes it: " + std::string(name) + " of " + std::to_string(count) + " numbers");
            }
            call(operation.function, count);
            return;
        }
    }
    throw Error("sizes are computed by " + std::string(name) + ", which this runtime does not know");
}

void Expression::skip(Kind kind, size_t from)
{
    parts_.insert(parts_.begin() + static_cast<std::ptrdiff_t>(from), {kind, parts_.size() - from, int64_t{0}, nullptr});
}

size_t Expression::bring_forward(size_t from, size_t to)
{
    auto begin = parts_.begin();
    std::rotate(begin + static_cast<std::ptrdiff_t>(to), begin + static_cast<std::ptrdiff_t>(from), parts_.end());
    return parts_.size() - from;
}

void Expression::choose(size_t then, size_t otherwise)
{
    skip(Kind::SKIP, otherwise);
    /* the skip is part of what is left out */
    parts_.insert(parts_.begin() + static_cast<std::ptrdiff_t>(then),
                  {Kind::SKIP_UNLESS, otherwise + 1 - then, int64_t{0}, nullptr});
}

Number Expression::value(const std::vector<Number> &symbols) const
{
    c10::SmallVector<Number, 16> stack;
    for (size_t at = 0; at < parts_.size(); at++) {
        const Part &part = parts_[at];
        switch (part.kind) {
        case Kind::NUMBER:
            stack.push_back(part.number);
            break;
        case Kind::SYMBOL:
            stack.push_back(symbols[part.count]);
            break;
        case Kind::CALL: {
            const Number found = part.function(stack.end() - part.count, part.count);
            stack.pop_back_n(part.count);
            stack.push_back(found);
            break;
        }
        case Kind::SKIP:
            at += part.count;
            break;
        case Kind::SKIP_UNLESS:
            at += truth(stack.pop_back_val()) ? 0 : part.count;
            break;
        case Kind::OR_ELSE:
        case Kind::AND_THEN:
            if (truth(stack.back()) == (part.kind == Kind::OR_ELSE)) {
                at += part.count;
            }
            else {
                stack.pop_back();
            }
            break;
        }
    }
    return stack.back();
}

namespace {

/* Text of Python, by precedence. */
class Text {
public:
    Text(std::string_view text, const Expression::Index &index, Expression &made) : text_(text), index_(index), made_(made) {}

    void read()
    {
        choice();
        space();
        if (at_ != text_.size()) {
            fail();
        }
    }

private:
    [[noreturn]] void fail() const { throw Error("the text of a size is no arithmetic: " + std::string(text_)); }

    void space()
    {
        while (at_ < text_.size() && text_[at_] == ' ') {
            at_++;
        }
    }

    static bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

    bool take(std::string_view token)
    {
        space();
        size_t end = at_ + token.size();
        bool word = in_word(token.back());
        if (text_.substr(at_, token.size()) != token || (word && end < text_.size() && in_word(text_[end]))) {
            return false;
        }
        at_ = end;
        return true;
    }

    void expect(std::string_view token)
    {
        if (!take(token)) {
            fail();
        }
    }

    /* What may hold itself counts how deep it is. */
    template <typename Read> void deeper(Read read)
    {
        if (++depth_ > 200) {
            fail();
        }
        read();
        depth_--;
    }

    void choice()
    {
        deeper([this] {
            size_t then = made_.size();
            either();
            if (take("if")) {
                size_t condition = made_.size();
                either();
                then += made_.bring_forward(condition, then);
                expect("else");
                size_t otherwise = made_.size();
                choice();
                made_.choose(then, otherwise);
            }
        });
    }

    void either()
    {
        both();
        while (take("or")) {
            size_t other = made_.size();
            both();
            made_.skip(Expression::Kind::OR_ELSE, other);
        }
    }

    void both()
    {
        negated();
        while (take("and")) {
            size_t other = made_.size();
            negated();
            made_.skip(Expression::Kind::AND_THEN, other);
        }
    }

    void negated()
    {
        if (take("not")) {
            deeper([this] { negated(); });
            made_.call("not", 1);
        }
        else {
            compared();
        }
    }

    struct Binary {
        const char *token;
        const char *operation;
    };

    /* The first of the tokens that comes next; longer ones stand first. */
    template <size_t N> const char *taken(const Binary (&rows)[N])
    {
        for (const Binary &row : rows) {
            if (take(row.token)) {
                return row.operation;
            }
        }
        return nullptr;
    }

    void compared()
    {
        static const Binary rows[] = {{"==", "eq"}, {"!=", "ne"}, {"<=", "le"}, {">=", "ge"}, {"<", "lt"}, {">", "gt"}};
        bits();
        if (const char *operation = taken(rows)) { /* `bits` has taken what begins with << or >> */
            bits();
            made_.call(operation, 2);
        }
    }

    void bits()
    {
        static const Binary rows[] = {{"|", "bitor"}, {"^", "bitxor"}, {"&", "bitand"}, {"<<", "lshift"}, {">>", "rshift"}};
        sum();
        while (const char *operation = taken(rows)) {
            sum();
            made_.call(operation, 2);
        }
    }

    void sum()
    {
        static const Binary rows[] = {{"+", "add"}, {"-", "sub"}};
        product();
        while (const char *operation = taken(rows)) {
            product();
            made_.call(operation, 2);
        }
    }

    void product()
    {
        static const Binary rows[] = {{"//", "floordiv"}, {"/", "truediv"}, {"%", "mod"}};
        sign();
        for (;;) {
            const char *operation = taken(rows);
            if (operation == nullptr) {
                space();
                if (text_.substr(at_, 1) != "*" || text_.substr(at_, 2) == "**") {
                    return;
                }
                at_++;
                operation = "mul";
            }
            sign();
            made_.call(operation, 2);
        }
    }

    void sign()
    {
        if (take("-")) {
            deeper([this] { sign(); });
            made_.number(int64_t{-1});
            made_.call("mul", 2);
        }
        else if (take("+")) {
            deeper([this] { sign(); });
        }
        else {
            atom();
            if (take("**")) {
                deeper([this] { sign(); });
                made_.call("pow", 2);
            }
        }
    }

    size_t numbers(std::string_view end)
    {
        size_t count = 0;
        while (!take(end)) {
            if (count != 0) {
                expect(",");
                if (take(end)) {
                    break;
                }
            }
            choice();
            count++;
        }
        return count;
    }

    void atom()
    {
        if (take("(")) {
            choice();
            expect(")");
            return;
        }
        space();
        size_t end = at_;
        while (end < text_.size() && (in_word(text_[end]) || text_[end] == '.')) {
            end++;
        }
        std::string word(text_.substr(at_, end - at_));
        if (word.empty()) {
            fail();
        }
        at_ = end;
        if (std::isdigit(static_cast<unsigned char>(word[0])) != 0) {
            made_.number(literal(word));
        }
        else if (word == "True" || word == "False") {
            made_.number(int64_t{word == "True"});
        }
        else if (!take("(")) {
            made_.symbol(index_(word));
        }
        else if (word == "small") {
            choice();
            expect(",");
            expect("[");
            size_t count = numbers("]");
            expect(")");
            made_.call(small, count + 1);
        }
        else {
            bool on_ints = word == "math.trunc" || word == "math.floor" || word == "math.ceil" || word == "math.copysign";
            made_.call(on_ints ? word.substr(5) : word, numbers(")"));
        }
    }

    Number literal(const std::string &word)
    {
        std::string digits = word;
        bool exponent = digits.back() == 'e' && at_ + 1 < text_.size(); /* 1e-05 */
        if (exponent) {
            size_t end = at_ + 1;
            while (end < text_.size() && std::isdigit(static_cast<unsigned char>(text_[end])) != 0) {
                end++;
            }
            digits += std::string(text_.substr(at_, end - at_));
            at_ = end;
        }
        char *stop = nullptr;
        errno = 0;
        if (digits.find_first_of(".e") == std::string::npos) {
            long long found = std::strtoll(digits.c_str(), &stop, 10);
            if (*stop != '\0' || errno != 0) {
                fail();
            }
            return int64_t{found};
        }
        double found = std::strtod(digits.c_str(), &stop);
        if (*stop != '\0') {
            fail();
        }
        return found;
    }

    std::string_view text_;
    const Expression::Index &index_;
    Expression &made_;
    size_t at_ = 0;
    int depth_ = 0;
};

} // namespace

int64_t int_of(Number number)
{
    return is_int(number) ? std::get<int64_t>(number) : whole(std::get<double>(number));
}

double float_of(Number number)
{
    return is_int(number) ? static_cast<double>(std::get<int64_t>(number)) : std::get<double>(number);
}

void Expression::read(const Json &tree, const Index &index)
{
    if (tree.is_text()) {
        symbol(index(tree.text()));
        return;
    }
    if (const bool *truth_value = std::get_if<bool>(&tree.value)) {
        number(int64_t{*truth_value});
        return;
    }
    if (!tree.is_array()) {
        number(tree.is_int() ? Number(tree.integer()) : Number(tree.number()));
        return;
    }
    const std::string kind = tree.kind();
    const size_t count = tree.array().size();
    std::vector<size_t> begins;
    for (size_t i = 1; i < count; i++) {
        begins.push_back(size());
        read(tree[i], index);
    }
    if (kind == "where" && count == 4) {
        choose(begins[1], begins[2]);
    }
    else if ((kind == "and" || kind == "or") && count == 3) {
        skip(kind == "or" ? Kind::OR_ELSE : Kind::AND_THEN, begins[1]);
        call("bool", 1);
    }
    else {
        call(kind, count - 1);
    }
}

Expression Expression::of_tree(const Json &tree, const Index &index)
{
    Expression made;
    made.read(tree, index);
    return made;
}

Expression Expression::of_text(std::string_view text, const Index &index)
{
    Expression made;
    Text(text, index, made).read();
    return made;
}

std::string tree_text(const Json &tree, const std::function<std::string(const std::string &symbol)> &shown)
{
    if (tree.is_text()) {
        return shown(tree.text());
    }
    if (!tree.is_array()) {
        return tree.is_int() ? std::to_string(tree.integer()) : std::to_string(tree.number());
    }
    std::string found = tree.kind() + "(";
    for (size_t i = 1; i < tree.array().size(); i++) {
        found += (i != 1 ? ", " : "") + tree_text(tree[i], shown);
    }
    return found + ")";
}

} // namespace dynajit
