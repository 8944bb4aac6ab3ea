/* Weights that compiled graphs have cast inside of an autocast region. See cast_weights.cpp. */
#ifndef DYNAJIT_CAST_WEIGHTS_H
#define DYNAJIT_CAST_WEIGHTS_H

#include <vector>

#include <ATen/core/Tensor.h>

namespace dynajit {

/* Notes that a graph is about to cast these inputs, leaves, and says whether autocast goes on with another cast of one of
 * them, made earlier in the region: then the graph has to run operator by operator. `eager`: it does so in any case. */
bool goes_on_with_casts(const std::vector<at::Tensor> &weights, bool eager);

/* A backward pass has begun, after which weights are often written: autocast gets the casts that eager mode would have made
 * by now, if the region that they were made in is still open. */
void keep_casts();

} // namespace dynajit

#endif
