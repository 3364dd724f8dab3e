// What people read when a device is out of memory.
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

} // namespace bringup
