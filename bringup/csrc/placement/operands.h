// The storages of one plan on partitioned memory: each lies as it was made, and may be held otherwise for a while.
#pragma once

#include <deque>

#include "aten/launch.h"
#include "pytorch/allocator.h"

namespace bringup {

inline bool same(const bringup_placement& a, const bringup_placement& b) {
  return a.kind == b.kind && (a.kind != BRINGUP_SHARD || a.block == b.block);
}

// One storage, or one temporary of the plan. At least one of its forms has the current bytes.
class Operand {
 public:
  Operand(Device& device, int32_t stream, c10::StorageImpl* storage, uint64_t nbytes, bool fresh, bool in_one_piece);

  // Bytes that have to be moved before a kernel can have it so, and after it; < 0: it cannot.
  double cost(const bringup_placement& wanted, bool written) const;
  // Its address in that form; afterwards, if it is written, the only one that is current.
  uint64_t in_form(const bringup_placement& wanted, bool written);
  // Writes what changed where the storage lies.
  void put_back();

  c10::StorageImpl* const storage; // nullptr: a temporary
  const uint64_t nbytes;
  const bringup_placement& home() const { return forms_.front().placement; }
  bool fresh() const { return fresh_; }

 private:
  struct Form {
    bringup_placement placement;
    c10::DataPtr data; // of the plan's own; empty for a storage's
    uint64_t address;
    bool current;
  };
  const Form* serving(const bringup_placement& wanted, bool written) const;
  void fill(Form& form);
  void settle(const bringup_placement& wanted);

  Device& device_;
  const int32_t stream_;
  bool fresh_; // nothing was written yet: it may lie anywhere
  const bool in_one_piece_;
  std::deque<Form> forms_; // the storage's own first
};

// Moves between forms since the process began: how many, and their bytes.
struct Moves {
  std::atomic<uint64_t> count{0}, bytes{0};
};
Moves& moves_so_far();

} // namespace bringup
