// The fallback ledger: every op that left the device for the CPU, with what it cost. Python decides what is allowed.
#include "aten/ledger.h"

#include <c10/util/Exception.h>

#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "pytorch/context.h"

namespace bringup {

namespace {

struct Book {
  std::shared_mutex mutex;
  std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OpRecord>> records;
  std::vector<std::unique_ptr<OpRecord>> retired; // of ops that were freed: threads may hold them

  struct Row {
    uint64_t calls = 0, bytes = 0, nanoseconds = 0;
    uint64_t allowed = 0; // when Python was asked
  };
  std::map<std::pair<std::string, int>, Row> rows; // by op and device
  std::function<void(const std::string&, int, const std::string&)> hook;
  uint64_t asking = 1; // counts the policies that have been in force
};
Book& book() {
  static auto* book = new Book();
  return *book;
}

// What the schemas do not say of arguments (bringup/torch_device/special_arguments.py).
enum Special { from_cpu_too = 1, from_device_only = 2, written = 4 };

} // namespace

std::unordered_map<std::string, int>& special_arguments() {
  static auto* arguments = new std::unordered_map<std::string, int>();
  return *arguments;
}

OpRecord::OpRecord(const c10::FunctionSchema& op_schema)
    : schema(op_schema),
      base_name(op_schema.name()),
      name(op_schema.name() + (op_schema.overload_name().empty() ? "" : "." + op_schema.overload_name())),
      shows_requires_grad(op_schema.name() == "aten::_sparse_mm_reduce_impl") {
  is_aten = base_name.rfind("aten::", 0) == 0;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    const auto found = special_arguments().find(base_name + " " + argument.name());
    const uint64_t special = found == special_arguments().end() ? 0 : found->second;
    mutated.push_back((argument.alias_info() && argument.alias_info()->isWrite()) || special & Special::written);
    if (i >= 64) continue;
    from_cpu |= (special / Special::from_cpu_too & 1) << i;
    device_only |= (special / Special::from_device_only & 1) << i;
  }
  for (const auto& result : schema.returns()) {
    int source = -1;
    if (const auto* alias = result.alias_info()) {
      if (!alias->isWrite()) returns_view = true;
      for (size_t i = 0; i < schema.arguments().size(); ++i)
        if (const auto* other = schema.arguments()[i].alias_info();
            other && other->isWrite() && other->beforeSets() == alias->beforeSets())
          source = static_cast<int>(i);
    }
    returned_argument.push_back(source);
  }
}

OpRecord& op_record(const c10::FunctionSchema& schema) {
  // A registered schema does not move, so its address finds the record; a few entries per thread save the lock. The
  // address of an op that was freed may come back as another op: the name is compared as well.
  struct Cached {
    const c10::FunctionSchema* schema = nullptr;
    OpRecord* record = nullptr;
  };
  thread_local Cached cache[256];
  Cached& slot = cache[(reinterpret_cast<uintptr_t>(&schema) >> 6) & 255];
  if (C10_LIKELY(slot.schema == &schema && slot.record->describes(schema))) return *slot.record;
  {
    std::shared_lock<std::shared_mutex> lock(book().mutex);
    if (auto it = book().records.find(&schema); it != book().records.end() && it->second->describes(schema)) {
      slot = {&schema, it->second.get()};
      return *slot.record;
    }
  }
  auto fresh = std::make_unique<OpRecord>(schema);
  std::unique_lock<std::shared_mutex> lock(book().mutex);
  auto& entry = book().records[&schema];
  if (!entry || !entry->describes(schema)) {
    if (entry) book().retired.push_back(std::move(entry));
    entry = std::move(fresh);
  }
  slot = {&schema, entry.get()};
  return *slot.record;
}

namespace {

thread_local const char* t_refusal = "";

void note_fallback(OpRecord& op, int device) {
  std::function<void(const std::string&, int, const std::string&)> hook;
  uint64_t asking;
  {
    std::shared_lock<std::shared_mutex> lock(book().mutex);
    asking = book().asking;
    const auto row = book().rows.find({op.name, device});
    if (row != book().rows.end() && row->second.allowed == asking) return;
    hook = book().hook;
  }
  if (hook) hook(op.name, device, no_kernel_on(device)); // takes the GIL: outside the lock
  std::unique_lock<std::shared_mutex> lock(book().mutex);
  book().rows[{op.name, device}].allowed = asking;
}

} // namespace

Refusal::Refusal(const char* reason) : before_(std::exchange(t_refusal, reason)) {}
Refusal::~Refusal() { t_refusal = before_; }

std::string no_kernel_on(int device) {
  Device& where = device_at(device);
  const char* reason = !where.driver.kernels   ? "its driver compiles none"
                       : !where.runs_kernels() ? "its driver moves nothing between memory partitions"
                       : *t_refusal            ? t_refusal
                                               : "the op has no lowering";
  return " has no kernel on " + where.label() + " (" + reason + ")";
}

Fallback::Fallback(OpRecord& op, int device) : op_(op), device_(device) {
  note_fallback(op, device);
  started_ = host_nanoseconds();
}

void Fallback::done(uint64_t bytes_moved) {
  const uint64_t ended = host_nanoseconds();
  std::unique_lock<std::shared_mutex> lock(book().mutex);
  Book::Row& row = book().rows[{op_.name, device_}];
  ++row.calls;
  row.bytes += bytes_moved;
  row.nanoseconds += ended - started_;
}

std::vector<LedgerRow> ledger_rows() {
  std::shared_lock<std::shared_mutex> lock(book().mutex);
  std::vector<LedgerRow> rows;
  for (const auto& [place, row] : book().rows)
    if (row.calls > 0)
      rows.emplace_back(place.first, place.second, row.calls, row.bytes, static_cast<double>(row.nanoseconds) * 1e-6);
  return rows;
}

void ledger_reset() {
  std::unique_lock<std::shared_mutex> lock(book().mutex);
  book().rows.clear();
}

void ledger_ask_again() {
  std::unique_lock<std::shared_mutex> lock(book().mutex);
  ++book().asking;
}

void set_fallback_hook(std::function<void(const std::string&, int, const std::string&)> hook) {
  std::unique_lock<std::shared_mutex> lock(book().mutex);
  book().hook = std::move(hook);
}

} // namespace bringup
