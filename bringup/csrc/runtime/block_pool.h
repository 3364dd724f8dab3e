// Which bytes of a device are free: segments cut into blocks, best fit, split, merge, statistics. Calls no driver.
//
// Not thread-safe: CachingAllocator guards it with one mutex. Nothing here knows events; a block that waits for one is
// simply "deferred". In front of the ordered pools every stream has quick lists: a freed block of up to 64 KiB stays
// whole, last in first out, up to 16 per size, so that the alloc+free pair of a tiny op touches no tree.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>

#include "runtime/allocator.h"

namespace bringup {

constexpr uint64_t kMinBlock = 512;            // all sizes are multiples of this
constexpr uint64_t kSmallRequest = 1ull << 20; // up to here: small pool
constexpr uint64_t kSmallSegment = 2ull << 20;
constexpr uint64_t kLargeSegment = 20ull << 20; // for requests below kOwnSegment
constexpr uint64_t kOwnSegment = 10ull << 20;   // from here on a request gets a segment of its own size
constexpr uint64_t kSegmentRound = 2ull << 20;
constexpr uint64_t kQuickLimit = 64ull << 10; // an op on more bytes than this costs more than the tree (0.2 µs)
constexpr uint8_t kQuickDepth = 16;
constexpr int32_t kAnyPool = -1;
constexpr int32_t kFirstPool = 1 << 16; // from here on a "stream" is a pool that belongs to graphs

enum class BlockState : uint8_t { unused, cached, quick, live, deferred };

struct StreamPools;

struct BlockNode : Block {
  uint64_t requested = 0;
  BlockNode* prev = nullptr; // neighbours by address in the same segment
  BlockNode* next = nullptr;
  BlockNode* link = nullptr; // quick list, list of unused nodes, or the allocator's list of events to record again
  StreamPools* home = nullptr;
  BlockState state = BlockState::unused;
  bool large = false;
  uint32_t holds = 0;           // deferred: events (and a recording in progress) that must end before reuse
  std::vector<int32_t> streams; // other streams that used the block and have no event yet

  bool is_split() const { return prev || next; }
};

struct BestFit { // smallest first, then lowest address: keeps high segments free for release
  using is_transparent = void;
  bool operator()(const BlockNode* node, uint64_t size) const { return node->size < size; }
  bool operator()(const BlockNode* a, const BlockNode* b) const {
    return a->size != b->size ? a->size < b->size : a->address < b->address;
  }
};

struct StreamPools {
  int32_t stream = 0;
  std::set<BlockNode*, BestFit> cached[2]; // small, large
  std::array<BlockNode*, kQuickLimit / kMinBlock + 1> quick{};
  std::array<uint8_t, kQuickLimit / kMinBlock + 1> quick_depth{};
};

struct Segment {
  uint64_t address = 0, size = 0;
  int32_t stream = 0;
  bool large = false;
};

class BlockPool {
 public:
  explicit BlockPool(CachingAllocator* owner) : owner_(owner) {}

  static uint64_t round_size(uint64_t nbytes);
  // Bytes to ask the driver for. A chip with little memory (below 160 MiB) gets segments of at most 1/8 of it.
  static uint64_t segment_size(uint64_t rounded, uint64_t device_memory);

  // A live block from the cache, or nullptr.
  BlockNode* take(uint64_t rounded, uint64_t requested, int32_t stream);
  // Registers new driver memory and takes a live block from it.
  BlockNode* add_segment(const Segment& segment, uint64_t rounded, uint64_t requested);
  void defer(BlockNode* node); // live → deferred: no tensor holds it any more
  void give(BlockNode* node);  // live or deferred → cache
  void merge_quick();          // quick lists → ordered pools, of all streams
  void merge_quick(int32_t stream);

  // A held pool keeps its segments, free or not: a graph runs on their addresses.
  void hold(int32_t pool) { held_.insert(pool); }
  void let_go(int32_t pool) { held_.erase(pool); }

  // Wholly free segments leave the pool here; afterwards each is either forgotten or put back.
  std::vector<Segment> detach_free_segments(int32_t only = kAnyPool);
  void forget_segment(const Segment& segment);
  void restore_segment(const Segment& segment);

  BlockNode* find(uint64_t address) const;
  std::vector<SegmentSnapshot> snapshot() const;

  MemoryStats stats;

 private:
  StreamPools& pools_of(int32_t stream);
  BlockNode* new_node(uint64_t address, uint64_t size, StreamPools& home, bool large);
  void drop_node(BlockNode* node);
  void insert(BlockNode* node);
  void erase(BlockNode* node);
  void insert_merged(BlockNode* node);
  void merge_quick(StreamPools& pools);
  BlockNode* carve(BlockNode* node, uint64_t rounded, uint64_t requested);
  void make_live(BlockNode* node, uint64_t requested);
  void count_splits(bool large);

  CachingAllocator* owner_;
  std::unordered_map<int32_t, std::unique_ptr<StreamPools>> pools_;
  StreamPools* recent_ = nullptr;
  std::map<uint64_t, std::pair<Segment, BlockNode*>> segments_; // by address; the node is the first block
  std::set<int32_t> held_;
  std::deque<BlockNode> nodes_; // stable addresses, never shrinks
  BlockNode* unused_ = nullptr;
  int64_t split_blocks_ = 0, split_bytes_ = 0; // net change of one operation
};

} // namespace bringup
