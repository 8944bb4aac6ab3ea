/* Arithmetic on sizes, as Python does it.
 *
 * In: trees of JSON (`dynajit/symbols.py` names the operations), or text of Python, read once. Out: numbers; Error for
 * what is no arithmetic, and for an int without 64 bits. Of a condition's two arms one is computed, of `and` and `or` the
 * second only where it decides. */
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "json.h"

namespace dynajit {

/* An int (a truth value is one) or a float. */
using Number = std::variant<int64_t, double>;

/* An expression of symbols, as parts that are gone through in order with a stack of numbers. */
class Expression {
public:
    /* Where a symbol is among those that `value` is given. */
    using Index = std::function<size_t(const std::string &symbol)>;
    using Function = Number (*)(const Number *numbers, size_t count);
    /* The last four leave out as many parts as they say: always, where the number on the stack is not true, and, keeping
     * that number, where it is true or is not. */
    enum class Kind { NUMBER, SYMBOL, CALL, SKIP, SKIP_UNLESS, OR_ELSE, AND_THEN };

    static Expression of_tree(const Json &tree, const Index &index);
    static Expression of_text(std::string_view text, const Index &index);

    Number value(const std::vector<Number> &symbols) const;

    /* What reads an expression adds parts at the end. */
    size_t size() const { return parts_.size(); }
    void number(Number value);
    void symbol(size_t at);
    void call(std::string_view name, size_t count);
    void call(Function function, size_t count);
    /* Before the parts from here on: what may leave them out. */
    void skip(Kind kind, size_t from);
    /* After a condition: which parts are the one arm, and from where on they are the other. */
    void choose(size_t then, size_t otherwise);
    /* Have the parts from here on before others; how many these are. */
    size_t bring_forward(size_t from, size_t to);

private:
    struct Part {
        Kind kind;
        size_t count; /* of numbers, or parts to leave out; a symbol's place */
        Number number;
        Function function;
    };

    void read(const Json &tree, const Index &index);

    std::vector<Part> parts_;
};

/* The tree for a reader: names of operations, and of symbols as `shown` has them. */
std::string tree_text(const Json &tree, const std::function<std::string(const std::string &symbol)> &shown);
int64_t int_of(Number number);
double float_of(Number number);

} // namespace dynajit
