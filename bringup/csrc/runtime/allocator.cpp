// Caching allocator of one device: who may use the blocks of BlockPool when, over threads, streams and full memory.
//
// Every call of the backend happens without the mutex. So three kinds of work in progress are visible to other
// threads, and each has its own account: bytes asked of the driver but not yet there (`charged`), threads that are
// inside raw_alloc or raw_free (`changing`), and blocks whose events are being recorded (`BlockNode::holds`).
#include "runtime/allocator.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "runtime/block_pool.h"
#include "runtime/blocking.h"

namespace bringup {
namespace {

constexpr uint64_t kNoLimit = UINT64_MAX;
constexpr uint64_t kMaxRequest = 1ull << 62; // beyond it rounding could overflow
// How long an allocation that found no memory waits for another thread that is inside raw_alloc or raw_free just then.
// Bounded: there may always be one.
constexpr auto kPatience = std::chrono::milliseconds(200);

} // namespace

// An event of the driver that holds a block back. Shared: several threads may query it at the same time; the last one
// destroys it, never under the mutex.
struct PendingEvent {
  PendingEvent(MemoryBackend& backend, BlockNode* node, int32_t stream)
      : backend(&backend), node(node), stream(stream) {
    handle = backend.record_event(stream);
  }
  PendingEvent(const PendingEvent&) = delete;
  void forget() { backend = nullptr; }
  ~PendingEvent() {
    if (!backend) return;
    try {
      backend->destroy_event(handle);
    } catch (...) { // a driver that cannot forget an event costs a handle, not the process
    }
  }

  MemoryBackend* backend;
  BlockNode* node;
  const int32_t stream;
  uint64_t handle = 0;
  std::atomic<bool> done{false};
};
using PendingEvents = std::vector<std::shared_ptr<PendingEvent>>;

struct CachingAllocator::State {
  State(MemoryBackend& backend, CachingAllocator* owner) : backend(backend), pool(owner) {}

  MemoryBackend& backend;
  std::atomic<uint64_t> memory_bytes{0};

  std::mutex mutex; // guards all below
  std::condition_variable changed;
  BlockPool pool;
  std::map<int32_t, std::deque<std::shared_ptr<PendingEvent>>> pending; // per stream, oldest first
  BlockNode* unrecorded = nullptr;                                      // record_event failed: try again later
  uint64_t charged = 0;                                                 // reserved bytes + bytes being asked for
  uint64_t limit = kNoLimit;
  double fraction = 1.0;
  int changing = 0;
  uint64_t changes = 0; // how often driver memory became free
  int32_t next_pool = kFirstPool;

  template <class F>
  auto locked(F&& work) {
    std::lock_guard lock(mutex);
    return work();
  }

  uint64_t memory() {
    uint64_t bytes = memory_bytes.load(std::memory_order_relaxed);
    if (bytes == 0) memory_bytes.store(bytes = backend.raw_memory(), std::memory_order_relaxed);
    return bytes;
  }

  void forget_pending() {
    for (auto& [stream, queue] : pending)
      for (auto& event : queue) event->forget();
    pending.clear();
  }

  void release_hold(BlockNode* node) { // mutex held
    if (--node->holds == 0) pool.give(node);
  }

  // The node is deferred and has one hold for this call. Streams whose event fails stay on the node for a later try.
  void record_events(BlockNode* node) noexcept {
    while (true) {
      int32_t stream;
      {
        std::lock_guard lock(mutex);
        if (node->streams.empty()) return release_hold(node);
        stream = node->streams.back();
      }
      try {
        auto event = std::make_shared<PendingEvent>(backend, node, stream);
        std::lock_guard lock(mutex);
        pending[stream].push_back(std::move(event));
        node->streams.pop_back();
        ++node->holds;
      } catch (...) {
        std::lock_guard lock(mutex);
        node->link = unrecorded;
        unrecorded = node;
        return;
      }
    }
  }

  void record_again() noexcept {
    BlockNode* node = locked([&] { return std::exchange(unrecorded, nullptr); });
    while (node) {
      BlockNode* next = node->link;
      record_events(node);
      node = next;
    }
  }

  // Gives back the blocks whose events are known to be done. mutex held; `dead` is destroyed after it is released.
  void sweep(bool whole_queues, PendingEvents& dead) {
    for (auto& [stream, queue] : pending) {
      if (!whole_queues) {
        for (; !queue.empty() && queue.front()->done; queue.pop_front()) dead.push_back(std::move(queue.front()));
        continue;
      }
      std::erase_if(queue, [&](std::shared_ptr<PendingEvent>& event) {
        const bool done = event->done; // once: another thread may set it meanwhile
        if (done) dead.push_back(event);
        return done;
      });
    }
    for (auto& event : dead) release_hold(event->node);
  }

  // Asks the oldest event of each stream until it is not done: one query per busy stream is the usual cost.
  void poll() {
    record_again();
    while (true) {
      PendingEvents fronts, dead;
      locked([&] {
        for (auto& [stream, queue] : pending)
          if (!queue.empty()) fronts.push_back(queue.front());
      });
      bool progress = false;
      for (auto& event : fronts) {
        try {
          event->done = event->done || backend.query_event(event->handle);
        } catch (...) { // unknown is not done
        }
        progress |= event->done;
      }
      if (!progress) return;
      std::lock_guard lock(mutex);
      sweep(false, dead);
    } // `lock` ends before `dead`
  }

  void wait_for_deferred() {
    record_again();
    PendingEvents events, dead;
    locked([&] {
      ++pool.stats.num_sync_all_streams;
      for (auto& [stream, queue] : pending) events.insert(events.end(), queue.begin(), queue.end());
    });
    for (auto& event : events)
      if (event->done || backend.wait_event(event->handle, event->stream)) event->done = true;
    std::lock_guard lock(mutex);
    sweep(true, dead);
  }

  // A live block from new driver memory; nullptr when the limit or the driver says no.
  BlockNode* grow(uint64_t segment, uint64_t rounded, uint64_t requested, int32_t stream) {
    {
      std::lock_guard lock(mutex);
      if (charged > limit || segment > limit - charged) return nullptr;
      charged += segment;
      ++changing;
    }
    uint64_t address = 0;
    try {
      address = backend.raw_alloc(segment);
    } catch (const std::exception& exception) {
      locked([&] {
        charged -= segment;
        --changing;
      });
      changed.notify_all();
      const auto* error = dynamic_cast<const Error*>(&exception);
      if (error && error->status == BRINGUP_OUT_OF_MEMORY) return nullptr;
      throw;
    }
    BlockNode* node = locked([&] {
      --changing;
      ++pool.stats.num_device_alloc;
      return pool.add_segment({address, segment, stream, rounded > kSmallRequest}, rounded, requested);
    });
    changed.notify_all();
    return node;
  }

  // Returns wholly free segments, all or those of one pool, to the driver; one that it refuses stays in the cache, and
  // one whose stream does not end. A block is free as soon as the host is done with it: its stream may still work on
  // it, and any stream may have replayed a graph on the memory of a pool.
  std::exception_ptr release_cached(int32_t only = kAnyPool) {
    const std::vector<Segment> segments = locked([&] {
      ++changing;
      return pool.detach_free_segments(only);
    });
    std::exception_ptr first_error;
    std::map<int32_t, bool> idle;
    for (const Segment& segment : segments) {
      const int32_t stream = segment.stream < kFirstPool ? segment.stream : kAllStreams;
      if (!idle.count(stream)) idle[stream] = backend.finish_work(stream);
      std::exception_ptr error;
      try {
        if (!idle[stream]) throw Error(BRINGUP_ERROR, backend.label() + ": a stream cannot be waited for");
        backend.raw_free(segment.address);
      } catch (...) {
        error = std::current_exception();
      }
      std::lock_guard lock(mutex);
      if (error) {
        pool.restore_segment(segment);
        if (!first_error) first_error = error;
      } else {
        charged -= segment.size;
        ++pool.stats.num_device_free;
        pool.forget_segment(segment);
      }
    }
    locked([&] {
      --changing;
      if (!segments.empty()) ++changes;
    });
    changed.notify_all();
    return first_error;
  }

  BlockNode* take(uint64_t rounded, uint64_t requested, int32_t stream) {
    std::lock_guard lock(mutex);
    if (BlockNode* node = pool.take(rounded, requested, stream)) return node;
    if (rounded > kSmallRequest) return nullptr;
    pool.merge_quick(stream);
    return pool.take(rounded, requested, stream);
  }

  BlockNode* allocate_slowly(uint64_t rounded, uint64_t requested, int32_t stream) {
    poll();
    if (BlockNode* node = take(rounded, requested, stream)) return node;
    const uint64_t segment = BlockPool::segment_size(rounded, memory());
    if (BlockNode* node = grow(segment, rounded, requested, stream)) return node;

    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    locked([&] { ++pool.stats.num_alloc_retries; });
    while (true) {
      wait_for_deferred();
      if (BlockNode* node = take(rounded, requested, stream)) return node;
      release_cached();
      const uint64_t seen = locked([&] { return changes; });
      if (BlockNode* node = grow(segment, rounded, requested, stream)) return node;
      if (segment > rounded) { // almost full: the exact size may still fit
        if (BlockNode* node = grow(rounded, rounded, requested, stream)) return node;
      }
      // No other thread had our memory in its hands.
      if (locked([&] { return changing == 0 && changes == seen; })) return nullptr;
      {
        Blocking blocking; // that thread may need the GIL
        std::unique_lock lock(mutex);
        if (!changed.wait_until(lock, deadline, [&] { return changing == 0; })) return nullptr;
      }
      if (std::chrono::steady_clock::now() > deadline) return nullptr;
    }
  }

  [[noreturn]] void throw_out_of_memory(uint64_t nbytes) {
    locked([&] { ++pool.stats.num_ooms; });
    // bringup/torch_device/memory.py reads this, and says what the memory is used for.
    throw Error(BRINGUP_OUT_OF_MEMORY,
                backend.label() + " is out of memory: tried to allocate " + std::to_string(nbytes) + " bytes");
  }
};

CachingAllocator::CachingAllocator(MemoryBackend& backend) : state_(std::make_unique<State>(backend, this)) {}

CachingAllocator::~CachingAllocator() { state_->forget_pending(); }

bool CachingAllocator::forget() {
  std::lock_guard lock(state_->mutex);
  if (state_->pool.stats.allocation.kind[0].current || state_->changing) return false;
  state_->forget_pending();
  state_->unrecorded = nullptr;
  state_->charged = 0;
  state_->memory_bytes = 0;
  state_->pool = BlockPool(this);
  return true;
}

// Measured on one thread of an EPYC (Zen 4), 1 KiB: alloc+free pair 26 ns with the quick lists, 103 ns
// with the ordered set alone (kQuickDepth = 0); the mutex takes 19 ns of either.
Block* CachingAllocator::allocate(uint64_t nbytes, int32_t stream) {
  if (nbytes > kMaxRequest) state_->throw_out_of_memory(nbytes);
  const uint64_t rounded = BlockPool::round_size(nbytes);
  {
    std::lock_guard lock(state_->mutex);
    if (BlockNode* node = state_->pool.take(rounded, nbytes, stream)) return node;
  }
  BlockNode* node = state_->allocate_slowly(rounded, nbytes, stream);
  if (!node) state_->throw_out_of_memory(nbytes);
  return node;
}

void CachingAllocator::free(Block* block) noexcept {
  if (!block) return;
  auto* node = static_cast<BlockNode*>(block);
  {
    std::lock_guard lock(state_->mutex);
    if (node->streams.empty()) return state_->pool.give(node);
    state_->pool.defer(node);
    node->holds = 1;
  }
  state_->record_events(node);
}

void CachingAllocator::record_stream(Block* block, int32_t stream) {
  auto* node = static_cast<BlockNode*>(block);
  if (stream == node->stream) return;
  std::lock_guard lock(state_->mutex);
  for (int32_t known : node->streams) {
    if (known == stream) return;
  }
  node->streams.push_back(stream);
}

int32_t CachingAllocator::make_pool() {
  std::lock_guard lock(state_->mutex);
  state_->pool.hold(state_->next_pool);
  return state_->next_pool++;
}

void CachingAllocator::release_pool(int32_t pool) noexcept {
  state_->locked([&] { state_->pool.let_go(pool); });
  state_->release_cached(pool); // what the driver refuses stays in the cache, for empty_cache
}

MemoryBackend& CachingAllocator::backend() { return state_->backend; }

Block* CachingAllocator::find(uint64_t address) {
  return state_->locked([&] { return state_->pool.find(address); });
}

void CachingAllocator::empty_cache() {
  state_->wait_for_deferred();
  if (std::exception_ptr error = state_->release_cached()) std::rethrow_exception(error);
}

void CachingAllocator::set_fraction(double fraction) {
  if (!(fraction >= 0.0 && fraction <= 1.0))
    throw Error(BRINGUP_INVALID, "a memory fraction lies between 0 and 1, got " + std::to_string(fraction));
  uint64_t limit = kNoLimit;
  if (fraction < 1.0) limit = static_cast<uint64_t>(std::floor(fraction * static_cast<double>(state_->memory())));
  std::lock_guard lock(state_->mutex);
  state_->fraction = fraction;
  state_->limit = limit;
}

double CachingAllocator::fraction() {
  return state_->locked([&] { return state_->fraction; });
}

MemoryStats CachingAllocator::stats() {
  std::lock_guard lock(state_->mutex);
  state_->pool.merge_quick(); // so that inactive_split is what CUDA would report
  return state_->pool.stats;
}

void CachingAllocator::reset_peak() {
  std::lock_guard lock(state_->mutex);
  state_->pool.stats.for_each([](Stat& stat) { stat.peak = stat.current; });
}

void CachingAllocator::reset_accumulated() {
  std::lock_guard lock(state_->mutex);
  MemoryStats& stats = state_->pool.stats;
  stats.for_each([](Stat& stat) { stat.allocated = stat.freed = 0; });
  stats.num_alloc_retries = stats.num_ooms = stats.num_sync_all_streams = 0;
  stats.num_device_alloc = stats.num_device_free = 0;
}

std::vector<SegmentSnapshot> CachingAllocator::snapshot() {
  std::lock_guard lock(state_->mutex);
  state_->pool.merge_quick();
  return state_->pool.snapshot();
}

} // namespace bringup
