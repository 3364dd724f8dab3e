// Best fit over segments: take, split, merge and count, as CUDA's caching allocator does. See block_pool.h.
#include "runtime/block_pool.h"

#include <algorithm>

namespace bringup {
namespace {

inline void increase(StatSet& set, int pool, int64_t amount) {
  for (int kind : {0, pool}) {
    Stat& stat = set.kind[kind];
    stat.current += amount;
    stat.peak = std::max(stat.peak, stat.current);
    stat.allocated += amount;
  }
}

inline void decrease(StatSet& set, int pool, int64_t amount) {
  for (int kind : {0, pool}) {
    set.kind[kind].current -= amount;
    set.kind[kind].freed += amount;
  }
}

inline void change(StatSet& set, int pool, int64_t amount) {
  if (amount > 0) increase(set, pool, amount);
  if (amount < 0) decrease(set, pool, -amount);
}

inline int pool_index(bool large) { return large ? 2 : 1; }

inline uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

} // namespace

uint64_t BlockPool::round_size(uint64_t nbytes) { return round_up(std::max<uint64_t>(nbytes, 1), kMinBlock); }

uint64_t BlockPool::segment_size(uint64_t rounded, uint64_t device_memory) {
  uint64_t size = rounded <= kSmallRequest ? kSmallSegment
                  : rounded < kOwnSegment  ? kLargeSegment
                                           : round_up(rounded, kSegmentRound);
  if (device_memory > 0) size = std::min(size, device_memory / 8 / kMinBlock * kMinBlock);
  return std::max(size, rounded);
}

StreamPools& BlockPool::pools_of(int32_t stream) {
  if (recent_ && recent_->stream == stream) return *recent_;
  auto& pools = pools_[stream];
  if (!pools) {
    pools = std::make_unique<StreamPools>();
    pools->stream = stream;
  }
  recent_ = pools.get();
  return *recent_;
}

BlockNode* BlockPool::new_node(uint64_t address, uint64_t size, StreamPools& home, bool large) {
  BlockNode* node = unused_;
  if (node) {
    unused_ = node->link;
  } else {
    node = &nodes_.emplace_back();
  }
  node->address = address;
  node->size = size;
  node->stream = home.stream;
  node->owner = owner_;
  node->requested = 0;
  node->prev = node->next = node->link = nullptr;
  node->home = &home;
  node->state = BlockState::cached;
  node->large = large;
  return node;
}

void BlockPool::drop_node(BlockNode* node) {
  node->state = BlockState::unused;
  node->link = unused_;
  unused_ = node;
}

// A cached block is split or not for as long as it stays in its set: merging and carving take it out first.
void BlockPool::insert(BlockNode* node) {
  node->state = BlockState::cached;
  node->home->cached[node->large].insert(node);
  if (!node->is_split()) return;
  split_blocks_ += 1;
  split_bytes_ += static_cast<int64_t>(node->size);
}

void BlockPool::erase(BlockNode* node) {
  node->home->cached[node->large].erase(node);
  if (!node->is_split()) return;
  split_blocks_ -= 1;
  split_bytes_ -= static_cast<int64_t>(node->size);
}

void BlockPool::count_splits(bool large) {
  change(stats.inactive_split, pool_index(large), split_blocks_);
  change(stats.inactive_split_bytes, pool_index(large), split_bytes_);
  split_blocks_ = split_bytes_ = 0;
}

void BlockPool::insert_merged(BlockNode* node) {
  if (BlockNode* left = node->prev; left && left->state == BlockState::cached) {
    erase(left);
    node->address = left->address;
    node->size += left->size;
    node->prev = left->prev;
    if (node->prev) {
      node->prev->next = node;
    } else {
      segments_.find(node->address)->second.second = node;
    }
    drop_node(left);
  }
  if (BlockNode* right = node->next; right && right->state == BlockState::cached) {
    erase(right);
    node->size += right->size;
    node->next = right->next;
    if (node->next) node->next->prev = node;
    drop_node(right);
  }
  insert(node);
  count_splits(node->large);
}

void BlockPool::make_live(BlockNode* node, uint64_t requested) {
  node->state = BlockState::live;
  node->requested = requested;
  const int pool = pool_index(node->large);
  const auto size = static_cast<int64_t>(node->size);
  increase(stats.allocation, pool, 1);
  increase(stats.allocated_bytes, pool, size);
  increase(stats.active, pool, 1);
  increase(stats.active_bytes, pool, size);
  increase(stats.requested_bytes, pool, static_cast<int64_t>(requested));
}

BlockNode* BlockPool::carve(BlockNode* node, uint64_t rounded, uint64_t requested) {
  const uint64_t rest = node->size - rounded;
  if (node->large ? rest > kSmallRequest : rest >= kMinBlock) {
    BlockNode* tail = new_node(node->address + rounded, rest, *node->home, node->large);
    tail->prev = node;
    tail->next = node->next;
    if (tail->next) tail->next->prev = tail;
    node->next = tail;
    node->size = rounded;
    insert(tail);
  }
  count_splits(node->large);
  make_live(node, requested);
  return node;
}

BlockNode* BlockPool::take(uint64_t rounded, uint64_t requested, int32_t stream) {
  StreamPools& pools = pools_of(stream);
  if (rounded <= kQuickLimit) {
    const size_t bucket = rounded / kMinBlock;
    if (BlockNode* node = pools.quick[bucket]) {
      pools.quick[bucket] = node->link;
      --pools.quick_depth[bucket];
      make_live(node, requested);
      return node;
    }
  }
  auto& cached = pools.cached[rounded > kSmallRequest];
  auto found = cached.lower_bound(rounded);
  if (found == cached.end()) return nullptr;
  BlockNode* node = *found;
  erase(node);
  return carve(node, rounded, requested);
}

BlockNode* BlockPool::add_segment(const Segment& segment, uint64_t rounded, uint64_t requested) {
  const int pool = pool_index(segment.large);
  increase(stats.segment, pool, 1);
  increase(stats.reserved_bytes, pool, static_cast<int64_t>(segment.size));
  BlockNode* node = new_node(segment.address, segment.size, pools_of(segment.stream), segment.large);
  segments_[segment.address] = {segment, node};
  return carve(node, rounded, requested);
}

void BlockPool::defer(BlockNode* node) {
  node->state = BlockState::deferred;
  decrease(stats.allocation, pool_index(node->large), 1);
  decrease(stats.allocated_bytes, pool_index(node->large), static_cast<int64_t>(node->size));
}

void BlockPool::give(BlockNode* node) {
  if (node->state == BlockState::live) defer(node);
  const int pool = pool_index(node->large);
  decrease(stats.active, pool, 1);
  decrease(stats.active_bytes, pool, static_cast<int64_t>(node->size));
  decrease(stats.requested_bytes, pool, static_cast<int64_t>(node->requested));
  if (!node->large && node->size <= kQuickLimit) {
    StreamPools& pools = *node->home;
    const size_t bucket = node->size / kMinBlock;
    if (pools.quick_depth[bucket] < kQuickDepth) {
      node->state = BlockState::quick;
      node->link = pools.quick[bucket];
      pools.quick[bucket] = node;
      ++pools.quick_depth[bucket];
      return;
    }
  }
  insert_merged(node);
}

void BlockPool::merge_quick(StreamPools& pools) {
  for (size_t bucket = 0; bucket < pools.quick.size(); ++bucket) {
    BlockNode* node = pools.quick[bucket];
    pools.quick[bucket] = nullptr;
    pools.quick_depth[bucket] = 0;
    while (node) {
      BlockNode* next = node->link;
      insert_merged(node);
      node = next;
    }
  }
}

void BlockPool::merge_quick(int32_t stream) { merge_quick(pools_of(stream)); }

void BlockPool::merge_quick() {
  for (auto& [stream, pools] : pools_) merge_quick(*pools);
}

std::vector<Segment> BlockPool::detach_free_segments(int32_t only) {
  merge_quick();
  std::vector<Segment> free;
  for (auto it = segments_.begin(); it != segments_.end();) {
    BlockNode* node = it->second.second;
    const int32_t stream = it->second.first.stream;
    const bool wanted = only == kAnyPool ? !held_.count(stream) : stream == only;
    if (!wanted || node->state != BlockState::cached || node->is_split()) {
      ++it;
      continue;
    }
    free.push_back(it->second.first);
    erase(node);
    drop_node(node);
    it = segments_.erase(it);
  }
  return free;
}

void BlockPool::forget_segment(const Segment& segment) {
  decrease(stats.segment, pool_index(segment.large), 1);
  decrease(stats.reserved_bytes, pool_index(segment.large), static_cast<int64_t>(segment.size));
  if (segment.stream < kFirstPool || held_.count(segment.stream)) return;
  for (const auto& [address, entry] : segments_)
    if (entry.first.stream == segment.stream) return;
  if (recent_ && recent_->stream == segment.stream) recent_ = nullptr;
  pools_.erase(segment.stream); // its number is not used again
}

void BlockPool::restore_segment(const Segment& segment) {
  BlockNode* node = new_node(segment.address, segment.size, pools_of(segment.stream), segment.large);
  segments_[segment.address] = {segment, node};
  insert(node);
}

BlockNode* BlockPool::find(uint64_t address) const {
  auto it = segments_.upper_bound(address);
  if (it == segments_.begin()) return nullptr;
  --it;
  BlockNode* node = it->second.second;
  while (node && address >= node->address + node->size) node = node->next;
  return node;
}

std::vector<SegmentSnapshot> BlockPool::snapshot() const {
  std::vector<SegmentSnapshot> result;
  for (const auto& [address, entry] : segments_) {
    const Segment& segment = entry.first;
    std::vector<BlockSnapshot> blocks;
    for (const BlockNode* node = entry.second; node; node = node->next) {
      const bool live = node->state == BlockState::live;
      const bool active = live || node->state == BlockState::deferred;
      blocks.emplace_back(node->address, node->size, active ? node->requested : 0, live, active);
    }
    result.emplace_back(segment.address, segment.size, segment.stream, segment.large, std::move(blocks));
  }
  return result;
}

} // namespace bringup
