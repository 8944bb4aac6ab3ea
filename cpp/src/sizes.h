/* Arithmetic on sizes, as Python does it.
 *
 * In: trees of JSON (`dynajit/symbols.py` names the operations), or text of Python. Out: numbers; Error for what is no
 * arithmetic, OverflowError for what has no int64. */
#pragma once

#include <functional>
#include <string>

#include "json.h"

namespace dynajit {

/* An int (a truth value is one) or a float. */
using Number = std::variant<int64_t, double>;
using ValueOf = std::function<Number(const std::string &symbol)>;

Number tree_value(const Json &tree, const ValueOf &value_of);
/* The tree for a reader: names of operations, and of symbols as `shown` has them. */
std::string tree_text(const Json &tree, const std::function<std::string(const std::string &symbol)> &shown);
Number text_value(std::string_view text, const ValueOf &value_of);
int64_t int_of(Number number);
double float_of(Number number);

} // namespace dynajit
