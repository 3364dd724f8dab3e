/* The options text "devices=4,memory=2G,fail=alloc:0.01,copy:0.01": every mistake names key, value and what is allowed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

const char *const sim_dtype_names[SIM_DTYPES] = {
    "bool",    "uint8",     "int8",      "int16",      "int32",  "int64",  "float16", "bfloat16", "float32",
    "float64", "complex32", "complex64", "complex128", "uint16", "uint32", "uint64",  "float8",   "quantized"};

static int32_t bad(const char *key, const char *value, const char *allowed) {
  return sim_fail(BRINGUP_INVALID, "option %s=%s: %s", key, value, allowed);
}

static int parse_whole(const char *text, uint64_t *number) {
  if (*text < '0' || *text > '9') return 0; /* strtoull would take signs and blanks */
  char *end;
  errno = 0;
  *number = strtoull(text, &end, 10);
  return errno == 0 && *end == 0;
}

static int parse_real(const char *text, double *number) {
  char *end;
  errno = 0;
  *number = strtod(text, &end);
  return errno == 0 && end != text && *end == 0 && isfinite(*number);
}

static int parse_size(const char *text, uint64_t *bytes) {
  char digits[32];
  size_t length = strlen(text);
  unsigned shift = 0;
  if (length == 0 || length >= sizeof digits) return 0;
  memcpy(digits, text, length + 1);
  switch (digits[length - 1]) {
    case 'K':
      shift = 10;
      break;
    case 'M':
      shift = 20;
      break;
    case 'G':
      shift = 30;
      break;
    default:
      break;
  }
  if (shift) digits[length - 1] = 0;
  if (!parse_whole(digits, bytes) || *bytes > UINT64_MAX >> shift) return 0;
  *bytes <<= shift;
  return 1;
}

static int32_t parse_fail(sim_options *o, const char *item) {
  const char *colon = strchr(item, ':');
  double probability;
  if (colon && parse_real(colon + 1, &probability) && probability >= 0 && probability <= 1) {
    for (int i = 0; i < SIM_FAULTS; i++) {
      if (strlen(sim_fault_names[i]) == (size_t)(colon - item) &&
          !strncmp(item, sim_fault_names[i], strlen(sim_fault_names[i]))) {
        o->fail[i] = probability;
        return BRINGUP_OK;
      }
    }
  }
  return bad("fail", item, "allowed are alloc:p, copy:p, launch:p and event:p with a probability p from 0 to 1");
}

static int32_t parse_roofline(sim_options *o, const char *key, const char *value, int *known) {
  sim_roofline *r = &o->roofline;
  double *target = NULL;
  int zero_allowed = 0;
  *known = 1;
  if (!strcmp(key, "bandwidth")) target = &r->bandwidth;
  if (!strcmp(key, "link_bandwidth")) target = &r->link_bandwidth;
  if (!strcmp(key, "launch_ns")) target = &r->launch_ns, zero_allowed = 1;
  if (!strcmp(key, "link_latency_ns")) target = &r->link_latency_ns, zero_allowed = 1;
  if (!strncmp(key, "peak_flops.", 11)) {
    for (int i = 0; i < SIM_DTYPES; i++)
      if (!strcmp(key + 11, sim_dtype_names[i])) target = &r->peak_flops[i];
    if (!target) return bad(key, value, "no such dtype; allowed are torch's names, such as peak_flops.float32");
  }
  if (!target) {
    *known = 0;
    return BRINGUP_OK;
  }
  if (!parse_real(value, target) || *target < 0 || (*target == 0 && !zero_allowed))
    return bad(key, value, zero_allowed ? "allowed is a number, 0 or more" : "allowed is a number above 0");
  r->enabled = 1;
  return BRINGUP_OK;
}

static int32_t parse_placement(sim_options *o, const char *value) {
  if (!strcmp(value, "single"))
    o->placement.kind = BRINGUP_SINGLE;
  else if (!strcmp(value, "replicate"))
    o->placement.kind = BRINGUP_REPLICATE;
  else if (!strcmp(value, "shard"))
    o->placement.kind = BRINGUP_SHARD;
  else if (!strcmp(value, "auto"))
    o->placement = (bringup_placement){.kind = BRINGUP_SHARD};
  else
    return bad("placement", value, "allowed are single, shard, replicate and auto");
  return BRINGUP_OK;
}

static int32_t parse_one(sim_options *o, const char *key, const char *value) {
  uint64_t n = 0;
  if (!strcmp(key, "devices")) {
    if (!parse_whole(value, &n) || n < 1 || n > SIM_MAX_DEVICES) return bad(key, value, "allowed is 1 to 64");
    o->devices = (int32_t)n;
  } else if (!strcmp(key, "memory")) {
    if (!parse_size(value, &n) || n < SIM_PAGE || n > 1ull << 40)
      return bad(key, value, "allowed is a size per device from 4K to 1024G, a whole number with K, M, G or no suffix");
    o->memory = n;
  } else if (!strcmp(key, "mode")) {
    if (strcmp(value, "library") && strcmp(value, "kernels")) return bad(key, value, "allowed are library and kernels");
    o->library = !strcmp(value, "library");
  } else if (!strcmp(key, "trap")) {
    if (!parse_whole(value, &n) || n > 1) return bad(key, value, "allowed are 0 and 1");
    o->trap = (int)n;
  } else if (!strcmp(key, "threads")) {
    if (!parse_whole(value, &n) || n < 1 || n > SIM_MAX_THREADS) return bad(key, value, "allowed is 1 to 256");
    o->threads = (uint32_t)n;
  } else if (!strcmp(key, "partitions")) {
    if (!parse_whole(value, &n) || n < 1 || n > SIM_MAX_PARTITIONS) return bad(key, value, "allowed is 1 to 1024");
    o->partitions = (uint32_t)n;
  } else if (!strcmp(key, "placement")) {
    return parse_placement(o, value);
  } else if (!strcmp(key, "shard_block")) {
    if (!parse_size(value, &n) || n < 8 || n % 8 || n > 1ull << 30)
      return bad(key, value, "allowed is a multiple of 8 bytes, up to 1G");
    o->placement.block = n;
  } else if (!strcmp(key, "seed")) {
    if (!parse_whole(value, &n)) return bad(key, value, "allowed is a whole number below 2^64");
    o->seed = n;
  } else if (!strcmp(key, "jitter")) {
    if (!parse_whole(value, &n)) return bad(key, value, "allowed is a whole number below 2^64, the seed of the delays");
    o->jitter = 1;
    o->jitter_seed = n;
  } else if (!strcmp(key, "name")) {
    if (!*value || strlen(value) >= sizeof o->name) return bad(key, value, "allowed are 1 to 95 characters");
    snprintf(o->name, sizeof o->name, "%s", value);
  } else if (!strcmp(key, "profile")) {
    return bad(key, value,
               "a profile is read by bringup.drivers.sim, which passes its numbers on; the C library takes "
               "peak_flops.<dtype>, bandwidth, launch_ns, link_bandwidth and link_latency_ns");
  } else {
    int known = 0;
    int32_t status = parse_roofline(o, key, value, &known);
    if (status != BRINGUP_OK || known) return status;
    return bad(key, value,
               "unknown option; known are devices, memory, mode, threads, trap, partitions, placement, shard_block, "
               "fail, seed, jitter, name, profile, peak_flops.<dtype>, bandwidth, launch_ns, link_bandwidth, "
               "link_latency_ns");
  }
  return BRINGUP_OK;
}

static int32_t check_together(sim_options *o) {
  sim_roofline *r = &o->roofline;
  if (r->enabled && (r->peak_flops[BRINGUP_FLOAT32] <= 0 || r->bandwidth <= 0))
    return sim_fail(BRINGUP_INVALID, "options peak_flops.float32 and bandwidth are both needed to describe a chip");
  if (r->enabled && r->link_bandwidth <= 0) r->link_bandwidth = r->bandwidth;
  if (o->memory / o->partitions < SIM_PAGE)
    return sim_fail(BRINGUP_INVALID, "options memory=%llu,partitions=%u: a partition needs at least 4K",
                    (unsigned long long)o->memory, o->partitions);
  return BRINGUP_OK;
}

/* The cores this process may run on. */
static uint32_t cores(void) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  int count = CPU_COUNT(&allowed);
  return count < 1 ? 1 : count > SIM_MAX_THREADS ? SIM_MAX_THREADS : (uint32_t)count;
}

static char *trim(char *text) {
  text += strspn(text, " \t\n");
  size_t length = strlen(text);
  while (length && strchr(" \t\n", text[length - 1])) text[--length] = 0;
  return text;
}

/* Where a key comes twice the later one counts: a user's options follow a profile's. */
int32_t sim_parse_options(const char *text, sim_options *o) {
  *o = (sim_options){.devices = 2, .memory = 4ull << 30, .threads = cores(), .partitions = 1};
  o->placement = (bringup_placement){.kind = BRINGUP_SINGLE, .block = 64};
  snprintf(o->name, sizeof o->name, "bringup sim");
  char *copy = strdup(text ? text : "");
  if (!copy) return sim_fail(BRINGUP_ERROR, "no host memory for the options");
  int32_t status = BRINGUP_OK;
  int in_fail = 0;
  char *rest = copy;
  for (char *token; status == BRINGUP_OK && (token = strsep(&rest, ","));) {
    char *item = trim(token), *equals = strchr(item, '=');
    if (!*item) continue;
    if (equals) {
      *equals = 0;
      char *key = trim(item), *value = trim(equals + 1);
      in_fail = !strcmp(key, "fail");
      status = in_fail ? parse_fail(o, value) : parse_one(o, key, value);
    } else {
      status = in_fail ? parse_fail(o, item)
                       : sim_fail(BRINGUP_INVALID, "option \"%s\": allowed is key=value, such as devices=2", item);
    }
  }
  free(copy);
  return status == BRINGUP_OK ? check_together(o) : status;
}
