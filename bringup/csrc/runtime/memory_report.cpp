// What people read about a device's memory: the out-of-memory message and the table of memory_summary().
#include <cstdio>

#include "runtime/allocator.h"

namespace bringup {
namespace {

std::string format(const char* pattern, auto... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

std::string bytes(int64_t value) { return format_bytes(value < 0 ? 0 : static_cast<uint64_t>(value)); }
std::string count(int64_t value) { return std::to_string(value); }

} // namespace

std::string format_bytes(uint64_t nbytes) {
  static const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(nbytes);
  int unit = 0;
  for (; value >= 1023.995 && unit < 6; ++unit) value /= 1024.0; // 1023.995 would print as 1024.00
  return unit == 0 ? format("%.0f B", value) : format("%.2f %s", value, units[unit]);
}

std::string out_of_memory_message(const std::string& label, uint64_t nbytes, const MemoryStats& stats,
                                  const MemoryLimits& limits) {
  const int64_t reserved = stats.reserved_bytes.kind[0].current;
  const int64_t allocated = stats.allocated_bytes.kind[0].current;
  const int64_t active = stats.active_bytes.kind[0].current;
  std::string text = label + " is out of memory: tried to allocate " + format_bytes(nbytes) + ".\n";
  auto line = [&](const char* name, const std::string& value, const std::string& meaning) {
    text += format("  %-20s %12s  %s\n", name, value.c_str(), meaning.c_str());
  };
  line("device memory", limits.total ? format_bytes(limits.total) : "unknown", "in all");
  if (limits.limit != UINT64_MAX) {
    line("limit", format_bytes(limits.limit), format("memory fraction %g", limits.fraction));
  }
  line("reserved", bytes(reserved), "taken from the driver by this process");
  line("allocated", bytes(allocated), "in live tensors");
  if (active > allocated) line("in flight", bytes(active - allocated), "freed, but another stream still uses it");
  line("cached", bytes(reserved - active), "reserved, but free");
  line("largest free block", format_bytes(limits.largest_free), "of the cached");
  text +=
      "What helps: a smaller batch; deleting tensors that are no longer needed; empty_cache() when much is cached in "
      "blocks that are too small";
  if (limits.limit != UINT64_MAX) text += "; a higher set_per_process_memory_fraction()";
  return text + ".";
}

std::string memory_table(const std::string& label, const MemoryStats& stats, const MemoryLimits& limits) {
  std::string text = "Memory of " + label + ": ";
  text += limits.total ? format_bytes(limits.total) : "size unknown";
  if (limits.limit != UINT64_MAX) {
    text += format(", limit %s (memory fraction %g)", format_bytes(limits.limit).c_str(), limits.fraction);
  }
  text += "\n" + format("%-22s %12s %12s %12s %12s\n", "", "current", "peak", "in all", "freed");
  const std::string rule(74, '-');
  auto rows = [&](const char* name, const StatSet& set, std::string (*show)(int64_t)) {
    static const char* const parts[] = {"", "  small pool", "  large pool"};
    for (int kind = 0; kind < 3; ++kind) {
      const Stat& stat = set.kind[kind];
      if (kind > 0 && stat.peak == 0 && stat.allocated == 0) continue;
      text += format("%-22s %12s %12s %12s %12s\n", kind == 0 ? name : parts[kind], show(stat.current).c_str(),
                     show(stat.peak).c_str(), show(stat.allocated).c_str(), show(stat.freed).c_str());
    }
  };
  text += rule + "\n";
  rows("allocated", stats.allocated_bytes, bytes);
  rows("requested", stats.requested_bytes, bytes);
  rows("active", stats.active_bytes, bytes);
  rows("reserved", stats.reserved_bytes, bytes);
  rows("inactive split", stats.inactive_split_bytes, bytes);
  text += rule + "\n";
  rows("allocations", stats.allocation, count);
  rows("active blocks", stats.active, count);
  rows("segments", stats.segment, count);
  rows("inactive split blocks", stats.inactive_split, count);
  text += rule + "\n";
  text += format("driver allocations %lld, frees %lld; retries %lld; out of memory %lld; largest free block %s\n",
                 static_cast<long long>(stats.num_device_alloc), static_cast<long long>(stats.num_device_free),
                 static_cast<long long>(stats.num_alloc_retries), static_cast<long long>(stats.num_ooms),
                 format_bytes(limits.largest_free).c_str());
  return text;
}

} // namespace bringup
