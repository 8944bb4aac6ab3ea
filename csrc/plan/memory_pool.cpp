/* The memory pool of call plans on CPUs.
 *
 * In: requests for memory from compiled graphs. Out: blocks whose pages are in memory already where there are any: on many
 * machines touching a new page costs more than all that is computed on it.
 *
 * Blocks are cut from large mappings, the lowest free address first, so that what was used before is used again; free
 * neighbours are one block. A block comes back when the last tensor on it dies, on any thread. Torch's own allocator is
 * asked through this one, which only counts what it gives: with that the pool knows the program's peak, and keeps no
 * more free memory than fits below it (and a little beside, see `kSlack`). What has not been asked for during a few seconds
 * goes back to the system. One more kind of request: a method of `Pool`, called by `PoolAllocator`. */
#include "plan/memory_pool.h"
#include "python/objects.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <list>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

namespace dynajit {
namespace {

/* The C library serves smaller requests from memory that it keeps itself. */
constexpr size_t kSmallest = size_t(128) << 10;
constexpr size_t kPage = size_t(4) << 10;
constexpr size_t kHugePage = size_t(2) << 20;
constexpr size_t kSegment = size_t(128) << 20;
/* Free memory may lie beside the program's peak up to so much, or a tenth of all its memory. */
constexpr size_t kSlack = size_t(96) << 20;
constexpr auto kIdle = std::chrono::seconds(3);

size_t rounded(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

struct Segment;

struct Block {
    Segment *segment;
    char *base;
    size_t size;
    size_t warm; /* from the base on, what may be in memory; of a free block */
    bool used = false;
    Block *before = nullptr, *after = nullptr; /* neighbours in memory */
};

struct ByAddress {
    bool operator()(const Block *a, const Block *b) const
    {
        return a->base < b->base;
    }
};

struct Segment {
    char *base;
    size_t size;
    std::set<Block *, ByAddress> free;
};

struct Pool {
    std::mutex mutex;
    std::list<Segment> segments; /* in the order in which they were made */
    std::unordered_map<void *, Block *> used;
    std::unordered_map<void *, size_t> foreign; /* large blocks of torch's own allocator that it was asked for here */
    size_t in_use = 0, kept = 0, outside = 0, peak = 0, hits = 0, misses = 0;
    std::atomic<size_t> bound{0};
    /* the thread that gives memory back when nothing happens */
    std::thread trimmer;
    bool trimming = false, stop = false;
    std::condition_variable wake;
    std::chrono::steady_clock::time_point last;

    void *take(size_t bytes)
    {
        size_t size = rounded(bytes, kPage);
        std::lock_guard<std::mutex> lock(mutex);
        Block *block = find(size);
        if (block == nullptr) {
            return nullptr;
        }
        (block->warm >= size ? hits : misses) += 1;
        kept -= block->warm;
        block->segment->free.erase(block);
        if (block->size > size) {
            Block *rest = new Block{block->segment, block->base + size, block->size - size,
                                    block->warm > size ? block->warm - size : 0};
            rest->before = block;
            rest->after = block->after;
            if (rest->after != nullptr) {
                rest->after->before = rest;
            }
            block->after = rest;
            block->size = size;
            kept += rest->warm;
            rest->segment->free.insert(rest);
        }
        block->used = true;
        used.emplace(block->base, block);
        in_use += size;
        grown();
        return block->base;
    }

    /* False if the address is none of ours. */
    bool give(void *address)
    {
        std::lock_guard<std::mutex> lock(mutex);
        auto found = used.find(address);
        if (found == used.end()) {
            return false;
        }
        c10::profiledCPUMemoryReporter().Delete(address);
        Block *block = found->second;
        used.erase(found);
        block->used = false;
        block->warm = block->size;
        in_use -= block->size;
        kept += block->size;
        block = merged(block);
        block->segment->free.insert(block);
        if (kept > bound) {
            evict(kept - bound);
        }
        last = std::chrono::steady_clock::now();
        if (kept != 0 && !trimming) {
            start_trimmer();
        }
        return true;
    }

    void count(void *address, size_t bytes)
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (foreign.emplace(address, bytes).second) {
            outside += bytes;
            grown();
        }
    }

    void uncount(void *address)
    {
        std::lock_guard<std::mutex> lock(mutex);
        auto found = foreign.find(address);
        if (found != foreign.end()) {
            outside -= found->second;
            foreign.erase(found);
        }
    }

    void trim()
    {
        std::lock_guard<std::mutex> lock(mutex);
        evict(kept);
        unmap();
    }

    /* The lowest free block that is large enough, in the oldest segment. */
    Block *find(size_t size)
    {
        if (bound == 0) {
            return nullptr;
        }
        for (Segment &segment : segments) {
            for (Block *block : segment.free) {
                if (block->size >= size) {
                    return block;
                }
            }
        }
        size_t length = std::max(rounded(size, kHugePage), kSegment);
        Segment *made = map(length);
        if (made == nullptr && length > size) {
            made = map(rounded(size, kHugePage));
        }
        return made != nullptr ? *made->free.begin() : nullptr;
    }

    Segment *map(size_t length)
    {
        /* one huge page more, to begin at a multiple of its size */
        void *raw = mmap(nullptr, length + kHugePage, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (raw == MAP_FAILED) {
            return nullptr;
        }
        char *low = static_cast<char *>(raw);
        char *base = reinterpret_cast<char *>(rounded(reinterpret_cast<size_t>(low), kHugePage));
        if (base > low) {
            munmap(low, static_cast<size_t>(base - low));
        }
        if (base + length < low + length + kHugePage) {
            munmap(base + length, static_cast<size_t>(low + kHugePage - base));
        }
#ifdef MADV_HUGEPAGE
        madvise(base, length, MADV_HUGEPAGE);
#endif
        segments.push_back(Segment{base, length, {}});
        Segment &segment = segments.back();
        segment.free.insert(new Block{&segment, base, length, 0});
        return &segment;
    }

    Block *merged(Block *block)
    {
        if (block->after != nullptr && !block->after->used) {
            absorb(block, block->after);
        }
        if (block->before != nullptr && !block->before->used) {
            Block *before = block->before;
            before->segment->free.erase(before);
            absorb(before, block);
            block = before;
        }
        return block;
    }

    void absorb(Block *block, Block *after)
    {
        block->segment->free.erase(after);
        kept -= block->warm + after->warm;
        block->warm = after->warm != 0 ? block->size + after->warm : block->warm;
        kept += block->warm;
        block->size += after->size;
        block->after = after->after;
        if (block->after != nullptr) {
            block->after->before = block;
        }
        delete after;
    }

    /* More memory is in use: the peak, and what it leaves for free memory. */
    void grown()
    {
        size_t live = in_use + outside;
        peak = std::max(peak, live);
        last = std::chrono::steady_clock::now();
        if (kept == 0 || live + kept <= peak + kSlack) {
            return;
        }
        struct rusage usage;
        getrusage(RUSAGE_SELF, &usage);
        size_t room = peak + std::max(kSlack, static_cast<size_t>(usage.ru_maxrss) * 1024 / 10);
        if (live + kept > room) {
            evict(live + kept - room);
        }
    }

    /* Gives so many bytes of free blocks back to the system, from the highest addresses on. */
    void evict(size_t bytes)
    {
        for (auto segment = segments.rbegin(); bytes != 0 && segment != segments.rend(); ++segment) {
            for (auto it = segment->free.rbegin(); bytes != 0 && it != segment->free.rend(); ++it) {
                Block *block = *it;
                if (block->warm == 0) {
                    continue;
                }
                size_t length = std::min(block->warm, rounded(bytes, kHugePage));
                madvise(block->base + (block->warm - length), length, MADV_DONTNEED);
                block->warm -= length;
                kept -= length;
                bytes -= std::min(bytes, length);
            }
        }
    }

    /* Segments that are one free block. */
    void unmap()
    {
        for (auto it = segments.begin(); it != segments.end();) {
            Block *block = it->free.empty() ? nullptr : *it->free.begin();
            if (block != nullptr && block->size == it->size) {
                kept -= block->warm;
                munmap(it->base, it->size);
                delete block;
                it = segments.erase(it);
            }
            else {
                ++it;
            }
        }
    }

    void start_trimmer()
    {
        if (trimmer.joinable()) {
            trimmer.join(); /* it has ended: `trimming` is false */
        }
        /* signals are the program's affair */
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            trimming = true;
            stop = false;
            trimmer = std::thread([this] { trim_when_idle(); });
        }
        catch (const std::system_error &) {
            trimming = false; /* no thread to be had: the next free block tries again */
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    void trim_when_idle()
    {
        std::unique_lock<std::mutex> lock(mutex);
        while (!stop && kept != 0) {
            auto due = last + kIdle;
            if (std::chrono::steady_clock::now() >= due) {
                evict(kept);
                unmap();
                break;
            }
            wake.wait_until(lock, due);
        }
        trimming = false;
    }

    /* Before a fork: no thread of ours, and nobody inside. */
    void hold()
    {
        std::unique_lock<std::mutex> lock(mutex);
        while (trimmer.joinable()) {
            stop = true;
            wake.notify_all();
            std::thread ending = std::move(trimmer);
            lock.unlock();
            ending.join();
            lock.lock();
        }
        lock.release();
    }

    void go_on()
    {
        mutex.unlock();
    }
};

/* Never destroyed: tensors may outlive everything. */
Pool &pool()
{
    static Pool *made = [] {
        Pool *fresh = new Pool;
        pthread_atfork([] { pool().hold(); }, [] { pool().go_on(); }, [] { pool().go_on(); });
        return fresh;
    }();
    return *made;
}

thread_local int scopes = 0;
c10::Allocator *own; /* torch's, before ours was put in front */

void release(void *address)
{
    if (address == nullptr) {
        return;
    }
    Pool &owner = pool();
    if (!owner.give(address)) {
        owner.uncount(address);
        own->raw_deallocate(address);
    }
}

struct PoolAllocator final : c10::Allocator {
    bool always; /* for whoever asks, not inside of scopes alone */

    explicit PoolAllocator(bool always) : always(always)
    {
    }

    c10::DataPtr allocate(size_t bytes) override
    {
        if (bytes < kSmallest) {
            return own->allocate(bytes);
        }
        if (always || scopes > 0) {
            void *address = pool().take(bytes);
            if (address != nullptr) {
                c10::profiledCPUMemoryReporter().New(address, bytes);
                return {address, address, &release, c10::Device(c10::kCPU)};
            }
        }
        if (own->raw_deleter() == nullptr) {
            return own->allocate(bytes);
        }
        void *address = own->raw_allocate(bytes);
        pool().count(address, bytes);
        return {address, address, &release, c10::Device(c10::kCPU)};
    }

    c10::DeleterFnPtr raw_deleter() const override
    {
        return &release;
    }

    void copy_data(void *to, const void *from, size_t bytes) const override
    {
        default_copy_data(to, from, bytes);
    }
};

PoolAllocator *in_front, *of_plans;

/* Puts the pool in front of torch's allocator; once. */
void install()
{
    if (own != nullptr) {
        return;
    }
    pool();
    own = c10::GetCPUAllocator();
    of_plans = new PoolAllocator(true);
    in_front = new PoolAllocator(false);
    c10::SetCPUAllocator(in_front);
}

PyObject *set_bound(PyObject *, PyObject *argument)
{
    size_t bytes = PyLong_AsSize_t(argument);
    if (bytes == static_cast<size_t>(-1) && PyErr_Occurred()) {
        return nullptr;
    }
    if (bytes != 0) {
        install();
    }
    pool().bound = bytes;
    Py_RETURN_NONE;
}

PyObject *trim_pool(PyObject *, PyObject *)
{
    Py_BEGIN_ALLOW_THREADS;
    pool().trim();
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject *pool_stats(PyObject *, PyObject *)
{
    Pool &owner = pool();
    std::unique_lock<std::mutex> lock(owner.mutex);
    size_t mapped = 0;
    for (const Segment &segment : owner.segments) {
        mapped += segment.size;
    }
    const size_t in_use = owner.in_use, kept = owner.kept, outside = owner.outside, peak = owner.peak,
                 hits = owner.hits, misses = owner.misses;
    /* Making the dictionary may run Python's collector, which may free tensors of the pool. */
    lock.unlock();
    return Py_BuildValue("{s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n}", "in_use", in_use, "kept", kept, "bound",
                         owner.bound.load(), "mapped", mapped, "outside", outside, "peak", peak, "hits", hits,
                         "misses", misses);
}

PyMethodDef methods[] = {
    {"memory_pool_set_bound", set_bound, METH_O,
     "memory_pool_set_bound(bytes)\n--\n\nKeep at most so much free memory; 0: no pool."},
    {"memory_pool_trim", trim_pool, METH_NOARGS, "memory_pool_trim()\n--\n\nGive all free memory back to the system."},
    {"memory_pool_stats", pool_stats, METH_NOARGS, "memory_pool_stats()\n--\n\nBytes in use, kept, and so on."},
    {nullptr, nullptr, 0, nullptr},
};

} // namespace

PoolScope::PoolScope()
{
    scopes++;
}

PoolScope::~PoolScope()
{
    scopes--;
}

c10::Allocator *pool_allocator()
{
    return of_plans != nullptr ? of_plans : c10::GetCPUAllocator();
}

} // namespace dynajit

extern "C" int dj_memory_pool_init(PyObject *module)
{
    return PyModule_AddFunctions(module, dynajit::methods);
}
