// The signature cache of one op: finds a plan under a shared lock, makes each once, forgets the least recently used.
#include "aten/plan_cache.h"

#include <algorithm>

#include "runtime/device.h"

namespace bringup {

PlanCache::Entry* PlanCache::entry_of(const Signature& call) {
  Entry* recent = recent_.load(std::memory_order_relaxed);
  if (C10_LIKELY(recent && recent->is(call))) return recent;
  const auto [begin, end] = entries_.equal_range(call.hash());
  for (auto it = begin; it != end; ++it) {
    if (!it->second->is(call)) continue;
    recent_.store(it->second.get(), std::memory_order_relaxed);
    return it->second.get();
  }
  return nullptr;
}

SharedPlan PlanCache::find(const Signature& call) {
  if (C10_UNLIKELY(writing_.load(std::memory_order_relaxed))) std::lock_guard<std::mutex> wait(gate_);
  std::shared_lock<std::shared_mutex> lock(mutex_);
  Entry* entry = entry_of(call);
  if (!entry) return nullptr;
  const uint64_t now = clock_.load(std::memory_order_relaxed);
  if (entry->used.load(std::memory_order_relaxed) != now) entry->used.store(now, std::memory_order_relaxed);
  for (const SharedPlan& plan : entry->plans)
    if (plan->serves(call)) return plan;
  return nullptr;
}

SharedPlan PlanCache::find_or_make(const Signature& call, const std::function<SharedPlan()>& make) {
  const std::vector<int64_t> words = call.words().vec();
  auto on_its_way = [&] { return std::find(making_.begin(), making_.end(), words) != making_.end(); };
  while (true) {
    std::unique_lock<std::mutex> lock(making_mutex_);
    if (!on_its_way()) {
      making_.push_back(words);
      break;
    }
    lock.unlock();
    {
      Blocking blocking; // outside the mutex on both ends: the GIL is never taken with the mutex in hand
      std::unique_lock<std::mutex> waiting(making_mutex_);
      made_.wait(waiting, [&] { return !on_its_way(); });
    }
    if (SharedPlan plan = find(call)) return plan; // else it failed there, or serves other numbers: try here
  }
  struct Done {
    ~Done() {
      std::lock_guard<std::mutex> lock(cache.making_mutex_);
      std::erase(cache.making_, words);
      cache.made_.notify_all();
    }
    PlanCache& cache;
    const std::vector<int64_t>& words;
  } done{*this, words};
  if (SharedPlan plan = find(call)) return plan; // made between the caller's look and ours
  SharedPlan plan = make();
  insert(call, plan);
  return plan;
}

void PlanCache::insert(const Signature& call, SharedPlan plan) {
  std::unique_ptr<Entry> evicted; // freed after the lock
  std::lock_guard<std::mutex> gate(gate_);
  writing_.store(true, std::memory_order_relaxed);
  std::unique_lock<std::shared_mutex> lock(mutex_);
  writing_.store(false, std::memory_order_relaxed);
  const uint64_t now = clock_.fetch_add(1, std::memory_order_relaxed) + 1;
  Entry* entry = entry_of(call);
  if (!entry) {
    if (entries_.size() >= kEntries) {
      const auto oldest = std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
        return a.second->used < b.second->used;
      });
      evicted = std::move(oldest->second);
      entries_.erase(oldest);
    }
    entry = entries_.emplace(call.hash(), std::make_unique<Entry>())->second.get();
    entry->words = call.words().vec();
    recent_.store(entry, std::memory_order_relaxed);
  }
  entry->used.store(now, std::memory_order_relaxed);
  if (entry->plans.size() >= kPlansPerEntry) entry->plans.erase(entry->plans.begin());
  entry->plans.push_back(std::move(plan));
}

void PlanCache::clear() {
  std::unordered_multimap<uint64_t, std::unique_ptr<Entry>> dropped;
  std::unique_lock<std::shared_mutex> lock(mutex_);
  entries_.swap(dropped);
  recent_.store(nullptr, std::memory_order_relaxed);
  lock.unlock();
}

void PlanCache::add_to(std::map<std::string, uint64_t>& info) {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  info["entries"] += entries_.size();
  for (const auto& [hash, entry] : entries_)
    for (const SharedPlan& plan : entry->plans) ++info[plan->refused() ? "refused" : "plans"];
}

} // namespace bringup
