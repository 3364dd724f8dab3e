// The signature cache of one op: finds a plan under a shared lock, makes each once, forgets the least recently used.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "aten/signature.h"

namespace bringup {

// A plan with what PyTorch's meta kernel said of calls with this signature.
struct BoundPlan {
  struct Result {   // one return of the schema
    int count = -1; // of a list; -1: no list
    std::vector<OutputSpec> tensors;
    std::optional<c10::IValue> constant; // not a tensor, or an undefined one
  };
  struct Resize { // an out= tensor that is not of the result's size
    uint32_t slot;
    OutputSpec spec;
  };
  std::shared_ptr<const Plan> plan; // nullptr: no kernel for such calls
  std::vector<Result> results;
  std::vector<Resize> resizes;
  bool functional = false; // the plan would write over what it still has to read: the functional form runs instead
  bool same_dtype = false; // no meta kernel has looked at an out=: it must have the result's dtype

  // PyTorch checks some numbers (huber_loss: delta > 0). Those of the first call have passed; others are asked about.
  c10::SmallVector<Number, 4> passed;
  mutable std::atomic<bool> checks_numbers{false};  // or may do so
  using Refusals = std::vector<uint32_t>;           // by argument, a bit for each probe that the meta kernel refuses
  mutable std::shared_ptr<const Refusals> refusals; // read and written with std::atomic_*; nullptr: not yet asked

  bool vouches_for(const Signature& call) const {
    if (C10_LIKELY(!checks_numbers.load(std::memory_order_relaxed))) return true;
    for (size_t i = 0; i < passed.size(); ++i)
      if (!passed[i].same(call.numbers[i])) return false;
    return true;
  }
  bool refused() const { return !plan || (plan->flags & Plan::kRefused); }
  bool serves(const Signature& call) const {
    if (!plan) return true;
    for (const Guard& guard : plan->guards)
      if (!guard.holds(call.numbers[guard.number])) return false;
    return true;
  }
};
using SharedPlan = std::shared_ptr<const BoundPlan>;

class PlanCache {
 public:
  static constexpr size_t kEntries = 512, kPlansPerEntry = 8;

  SharedPlan find(const Signature& call);
  // Threads that miss the same signature wait, without the GIL, for the first of them.
  SharedPlan find_or_make(const Signature& call, const std::function<SharedPlan()>& make);
  void clear();

  void add_to(std::map<std::string, uint64_t>& info); // its entries, plans and refused signatures

 private:
  struct Entry {
    std::vector<int64_t> words;
    std::vector<SharedPlan> plans;
    std::atomic<uint64_t> used{0}; // value of clock_ when it was last found
    bool is(const Signature& call) const { return call.words() == c10::ArrayRef<int64_t>(words); }
  };
  Entry* entry_of(const Signature& call); // a lock is held
  void insert(const Signature& call, SharedPlan plan);

  std::shared_mutex mutex_;
  std::mutex gate_; // readers stop here while somebody writes: many of them would never let a writer in
  std::atomic<bool> writing_{false};
  std::unordered_multimap<uint64_t, std::unique_ptr<Entry>> entries_; // by hash
  std::atomic<Entry*> recent_{nullptr}; // most calls repeat the last signature: its words are compared unhashed
  std::atomic<uint64_t> clock_{0};      // counts insertions

  std::mutex making_mutex_;
  std::condition_variable made_;
  std::vector<std::vector<int64_t>> making_; // signatures whose plan is on its way
};

} // namespace bringup
