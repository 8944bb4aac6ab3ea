#include "sizes.h"

#include <cctype>
#include <cmath>
#include <cstring>

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

/* Half to even, as Python's `round`. */
Number rounded(Number number)
{
    return is_int(number) ? number : Number(whole(std::nearbyint(float_of(number))));
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

Number floor_divide(Number a, Number b)
{
    if (!truth(b)) {
        throw Error("a size is divided by zero");
    }
    if (!is_int(a) || !is_int(b)) {
        return std::floor(float_of(a) / float_of(b));
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
    if (!is_int(a) || !is_int(b)) {
        double found = std::fmod(float_of(a), float_of(b));
        return found != 0 && (found < 0) != (float_of(b) < 0) ? found + float_of(b) : found;
    }
    return int_of(a) - int_of(multiply(floor_divide(a, b), b));
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

double of_math(const std::string &name, double x)
{
    struct Row {
        const char *name;
        double (*function)(double);
    };
    static const Row rows[] = {
        {"sqrt", std::sqrt}, {"cos", std::cos},   {"cosh", std::cosh}, {"sin", std::sin},     {"sinh", std::sinh},
        {"tan", std::tan},   {"tanh", std::tanh}, {"asin", std::asin}, {"acos", std::acos},   {"atan", std::atan},
        {"exp", std::exp},   {"log", std::log},   {"log2", std::log2}, {"asinh", std::asinh},
    };
    for (const Row &row : rows) {
        if (name == row.name) {
            return row.function(x);
        }
    }
    throw Error("sizes are computed by math." + name + ", which this runtime does not know");
}

/* An operation by its name in the trees; text has the same under other names. */
Number operate(const std::string &name, const std::vector<Number> &x)
{
    auto needs = [&x, &name](size_t count) {
        if (x.size() != count) {
            throw Error("not as dynajit writes it: " + name + " of " + std::to_string(x.size()) + " numbers");
        }
    };
    if (name.rfind("math.", 0) == 0) {
        needs(1);
        return of_math(name.substr(5), float_of(x[0]));
    }
    if (name == "not" || name == "float" || name == "abs" || name == "trunc" || name == "floor" || name == "ceil" ||
        name == "round" || name == "int" || name == "bool") {
        needs(1);
        if (name == "not" || name == "bool") {
            return int64_t{truth(x[0]) == (name == "bool")};
        }
        if (name == "float") {
            return float_of(x[0]);
        }
        if (name == "abs") {
            return is_int(x[0]) ? Number(std::abs(int_of(x[0]))) : Number(std::fabs(float_of(x[0])));
        }
        if (is_int(x[0])) {
            return x[0];
        }
        double one = float_of(x[0]);
        return name == "round" ? rounded(x[0])
                               : Number(whole(name == "floor" ? std::floor(one) : name == "ceil" ? std::ceil(one) : std::trunc(one)));
    }
    if (name == "where") {
        needs(3);
        return truth(x[0]) ? x[1] : x[2];
    }
    if ((name == "min" || name == "max") && !x.empty()) {
        Number found = x[0];
        for (const Number &one : x) {
            found = compare(one, found) * (name == "max" ? 1 : -1) > 0 ? one : found;
        }
        return found;
    }
    needs(2);
    const Number &a = x[0], &b = x[1];
    if (name == "add") {
        return add(a, b);
    }
    if (name == "sub") {
        return add(a, multiply(b, int64_t{-1}));
    }
    if (name == "mul") {
        return multiply(a, b);
    }
    if (name == "floordiv") {
        return floor_divide(a, b);
    }
    if (name == "mod") {
        return modulo(a, b);
    }
    if (name == "pow") {
        return power(a, b);
    }
    if (name == "truediv") {
        return float_of(a) / float_of(b);
    }
    if (name == "copysign") {
        return std::copysign(float_of(a), float_of(b));
    }
    if (name == "and" || name == "or") {
        return int64_t{name == "and" ? truth(a) && truth(b) : truth(a) || truth(b)};
    }
    if (name == "bitand" || name == "bitor" || name == "bitxor") {
        return name == "bitand" ? int_of(a) & int_of(b) : name == "bitor" ? int_of(a) | int_of(b) : int_of(a) ^ int_of(b);
    }
    if (name == "lshift" || name == "rshift") {
        if (int_of(b) < 0 || int_of(b) > 62) {
            overflow();
        }
        return name == "lshift" ? multiply(a, int64_t{1} << int_of(b)) : Number(int_of(a) >> int_of(b));
    }
    int order = compare(a, b);
    if (name == "eq" || name == "ne") {
        return int64_t{(order == 0) == (name == "eq")};
    }
    if (name == "lt" || name == "ge") {
        return int64_t{(order < 0) == (name == "lt")};
    }
    if (name == "gt" || name == "le") {
        return int64_t{(order > 0) == (name == "gt")};
    }
    throw Error("sizes are computed by " + name + ", which this runtime does not know");
}

/* Text of Python, by precedence. */
class Text {
public:
    Text(std::string_view text, const ValueOf &value_of) : text_(text), value_of_(value_of) {}

    Number whole_text()
    {
        Number found = choice();
        space();
        if (at_ != text_.size()) {
            fail();
        }
        return found;
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

    Number choice()
    {
        if (++depth_ > 200) {
            fail();
        }
        Number then = either();
        if (take("if")) {
            bool held = truth(either());
            expect("else");
            Number otherwise = choice();
            then = held ? then : otherwise;
        }
        depth_--;
        return then;
    }

    Number either()
    {
        Number found = both();
        while (take("or")) {
            Number other = both();
            found = truth(found) ? found : other;
        }
        return found;
    }

    Number both()
    {
        Number found = negated();
        while (take("and")) {
            Number other = negated();
            found = truth(found) ? other : found;
        }
        return found;
    }

    Number negated() { return take("not") ? Number(int64_t{!truth(negated())}) : compared(); }

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

    Number compared()
    {
        static const Binary rows[] = {{"==", "eq"}, {"!=", "ne"}, {"<=", "le"}, {">=", "ge"}, {"<", "lt"}, {">", "gt"}};
        Number found = bits();
        const char *operation = taken(rows); /* `bits` has taken what begins with << or >> */
        return operation == nullptr ? found : operate(operation, {found, bits()});
    }

    Number bits()
    {
        static const Binary rows[] = {{"|", "bitor"}, {"^", "bitxor"}, {"&", "bitand"}, {"<<", "lshift"}, {">>", "rshift"}};
        Number found = sum();
        while (const char *operation = taken(rows)) {
            found = operate(operation, {found, sum()});
        }
        return found;
    }

    Number sum()
    {
        static const Binary rows[] = {{"+", "add"}, {"-", "sub"}};
        Number found = product();
        while (const char *operation = taken(rows)) {
            found = operate(operation, {found, product()});
        }
        return found;
    }

    Number product()
    {
        static const Binary rows[] = {{"//", "floordiv"}, {"/", "truediv"}, {"%", "mod"}};
        Number found = sign();
        for (;;) {
            const char *operation = taken(rows);
            if (operation == nullptr) {
                space();
                if (text_.substr(at_, 1) != "*" || text_.substr(at_, 2) == "**") {
                    return found;
                }
                at_++;
                operation = "mul";
            }
            found = operate(operation, {found, sign()});
        }
    }

    Number sign()
    {
        if (take("-")) {
            return multiply(sign(), int64_t{-1});
        }
        if (take("+")) {
            return sign();
        }
        Number base = atom();
        return take("**") ? power(base, sign()) : base;
    }

    std::vector<Number> numbers(std::string_view end)
    {
        std::vector<Number> found;
        while (!take(end)) {
            if (!found.empty()) {
                expect(",");
                if (take(end)) {
                    break;
                }
            }
            found.push_back(choice());
        }
        return found;
    }

    Number atom()
    {
        if (take("(")) {
            Number found = choice();
            expect(")");
            return found;
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
            return literal(word);
        }
        if (word == "True" || word == "False") {
            return int64_t{word == "True"};
        }
        if (!take("(")) {
            return value_of_(word);
        }
        if (word == "small") {
            Number limit = choice();
            expect(",");
            expect("[");
            for (const Number &number : numbers("]")) {
                if (compare(operate("abs", {number}), limit) >= 0) {
                    throw Error("a number that a kernel computes with has more bits than the kernel has for it");
                }
            }
            expect(")");
            return int64_t{0};
        }
        std::vector<Number> given = numbers(")");
        if (word == "float_bits" && given.size() == 1) {
            int64_t found = 0;
            double number = float_of(given[0]);
            std::memcpy(&found, &number, sizeof found);
            return found;
        }
        bool on_ints = word == "math.trunc" || word == "math.floor" || word == "math.ceil" || word == "math.copysign";
        return operate(on_ints ? word.substr(5) : word, given);
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
    const ValueOf &value_of_;
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

Number tree_value(const Json &tree, const ValueOf &value_of)
{
    if (tree.is_text()) {
        return value_of(tree.text());
    }
    if (const bool *truth_value = std::get_if<bool>(&tree.value)) {
        return int64_t{*truth_value};
    }
    if (!tree.is_array()) {
        return tree.is_int() ? Number(tree.integer()) : Number(tree.number());
    }
    std::vector<Number> parts;
    for (size_t i = 1; i < tree.array().size(); i++) {
        parts.push_back(tree_value(tree[i], value_of));
    }
    return operate(tree.kind(), parts);
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

Number text_value(std::string_view text, const ValueOf &value_of)
{
    return Text(text, value_of).whole_text();
}

} // namespace dynajit
