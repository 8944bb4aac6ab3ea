/* Large blocks of CPU memory that are kept when tensors die, for the next ones. */
#ifndef DYNAJIT_MEMORY_POOL_H
#define DYNAJIT_MEMORY_POOL_H

#include <c10/core/Allocator.h>

namespace dynajit {

/* Where the tensors of call plans get their memory: small ones from torch's own allocator. */
c10::Allocator *pool_allocator();

/* While one exists, what operators allocate on this thread comes from the pool too. */
struct PoolScope {
    PoolScope();
    ~PoolScope();
    PoolScope(const PoolScope &) = delete;
    PoolScope &operator=(const PoolScope &) = delete;
};

} // namespace dynajit

#endif
