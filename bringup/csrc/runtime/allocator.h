// Caching allocator of one device: splits and merges big segments, one set of pools per stream. No torch here.
//
// Memory freed on the stream that allocated it is reused at once, because that stream's work is ordered. Memory that
// another stream also used (record_stream) waits for that stream's event. The driver is never called while the mutex
// is held: a Python driver needs the GIL, and the thread that holds the GIL may be waiting for the mutex (rule: no lock
// around a driver).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/error.h"

namespace bringup {

// What the allocator needs from a device; implemented by Device and by the sanitizer tests. All may throw Error.
struct MemoryBackend {
  virtual ~MemoryBackend() = default;
  virtual uint64_t raw_alloc(uint64_t nbytes) = 0; // throws Error{BRINGUP_OUT_OF_MEMORY}
  virtual void raw_free(uint64_t address) = 0;
  virtual uint64_t raw_memory() = 0; // total bytes of the device
  virtual uint64_t record_event(int32_t stream) = 0;
  virtual bool query_event(uint64_t event) = 0;
  // These two block the caller, and keep what failed meanwhile for the user. False: the work may still run.
  virtual bool wait_event(uint64_t event, int32_t stream) noexcept = 0;
  virtual bool finish_work(int32_t stream) noexcept = 0; // all that is queued so far; kAllStreams: of every stream
  virtual void destroy_event(uint64_t event) = 0;
  virtual std::string label() = 0; // "sim:0", for messages
};

constexpr int32_t kAllStreams = -1;

class CachingAllocator;

// What callers may read of a block, inline; fixed while the block is live. The rest is BlockNode (block_pool.h).
struct Block {
  uint64_t address = 0;
  uint64_t size = 0; // rounded bytes
  int32_t stream = 0;
  CachingAllocator* owner = nullptr; // deleters get only the block
  bringup_placement placement{};     // the user's: how the block's bytes lie over the partitions
};

struct Stat {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
};
struct StatSet { // aggregate, small pool, large pool: the order of c10's StatType
  Stat kind[3];
};
struct MemoryStats {
  StatSet allocation, segment, active, inactive_split;
  StatSet allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;
  int64_t num_alloc_retries = 0, num_ooms = 0, num_sync_all_streams = 0, num_device_alloc = 0, num_device_free = 0;

  template <typename Function>
  void for_each(Function function) {
    for (StatSet* set : {&allocation, &segment, &active, &inactive_split, &allocated_bytes, &reserved_bytes,
                         &active_bytes, &inactive_split_bytes, &requested_bytes}) {
      for (Stat& stat : set->kind) function(stat);
    }
  }
};

// Address, size, requested bytes; whether a tensor holds it; whether one does, or it was freed but a recorded stream
// still uses it.
using BlockSnapshot = std::tuple<uint64_t, uint64_t, uint64_t, bool, bool>;
// Address, size, stream, whether it is a large one, its blocks.
using SegmentSnapshot = std::tuple<uint64_t, uint64_t, int32_t, bool, std::vector<BlockSnapshot>>;

class CachingAllocator {
 public:
  explicit CachingAllocator(MemoryBackend& backend);
  ~CachingAllocator(); // leaves segments to the driver: it may be gone by then

  // nbytes > 0. Throws Error{BRINGUP_OUT_OF_MEMORY} when even an empty cache does not help.
  Block* allocate(uint64_t nbytes, int32_t stream);
  // Called from tensor destructors: never throws. A driver that fails here delays the reuse of the block, no more.
  void free(Block* block) noexcept;
  // The block is also used by work queued on `stream`: after free() it is not reused before that work is done.
  void record_stream(Block* block, int32_t stream);

  MemoryBackend& backend();
  // The block that contains an address, live or cached, or nullptr. Read its fields only if you know that it is live.
  Block* find(uint64_t address);

  // Starts anew, and says no word of it to the driver: its device is about to be closed. False where somebody holds
  // memory, or asks for it just now: then nothing changes.
  bool forget();

  // A pool for graphs: allocate() takes its number in place of a stream's. The driver gets none of its memory back
  // before release_pool; then what no block holds at once, the rest like any other cached memory.
  int32_t make_pool();
  void release_pool(int32_t pool) noexcept;

  // Waits for deferred blocks, then returns every wholly free segment to the driver, once no stream works on it any
  // more. Throws the driver's first error.
  void empty_cache();
  // Upper bound of reserved bytes, as a share of the device's memory, in [0, 1]; 1.0 lifts it.
  void set_fraction(double fraction);
  double fraction();

  MemoryStats stats();
  void reset_peak();
  void reset_accumulated();
  std::vector<SegmentSnapshot> snapshot();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace bringup
