/* Making, running and giving back a machine. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "iss.h"
#include "vector.h"

/* Zeros that take memory only where they are touched. */
static void *reserve(uint64_t bytes) {
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? NULL : at;
}

static uint64_t decoded_bytes(const iss *m) { return (m->ram_bytes / 2 + 4) * sizeof(iss_insn); }
static uint64_t beats_bytes(const iss *m) { return (m->ram_bytes / 2 + 4) * sizeof(uint64_t); }

iss *iss_create(const iss_config *config) {
  iss *m = aligned_alloc(64, (sizeof(iss) + 63) / 64 * 64);
  if (!m) return NULL;
  memset(m, 0, sizeof *m);
  m->ram_base = config->ram_base;
  m->ram_bytes = config->ram_bytes;
  m->owns_ram = !config->ram;
  m->ram = config->ram ? config->ram : reserve(config->ram_bytes);
  m->decoded = reserve(decoded_bytes(m));
  m->beats = reserve(beats_bytes(m));
  m->pages = calloc(config->ram_bytes / 4096 + 1, 1);
  m->xlen = config->xlen;
  m->extensions = config->extensions;
  m->vlenb = config->vlen / 8;
  m->vtype = (uint64_t)1 << (config->xlen - 1);
  m->mstatus = MSTATUS_MPP;
  m->float_slow = true; /* floats are off until the program switches them on */
  m->reserved_at = ~(uint64_t)0;
  m->read = config->read;
  m->write = config->write;
  m->user = config->user;
  m->kernels = iss_choose_kernels(config->portable);
  if (m->ram && m->decoded && m->beats && m->pages) return m;
  iss_destroy(m);
  return NULL;
}

void iss_destroy(iss *m) {
  if (!m) return;
  if (m->ram && m->owns_ram) munmap(m->ram, m->ram_bytes);
  if (m->decoded) munmap(m->decoded, decoded_bytes(m));
  if (m->beats) munmap(m->beats, beats_bytes(m));
  free(m->pages);
  free(m->console);
  free(m->ranges);
  free(m);
}

uint8_t *iss_ram(iss *m) { return m->ram; }
iss_registers *iss_register_file(iss *m) { return &m->r; }
uint8_t *iss_vector_file(iss *m) { return m->v; }
uint64_t iss_retired(iss *m) { return iss_retired_now(m); }

int iss_add_device(iss *m, uint64_t base, uint64_t size) {
  if (m->device_count == ISS_DEVICES_MAX) return -1;
  m->devices[m->device_count++] = (iss_place){base, size};
  return 0;
}

void iss_set_interrupt(iss *m, int pending) {
  m->mip = pending ? m->mip | MIP_MEIP : m->mip & ~(uint64_t)MIP_MEIP;
  m->watch = true;
}

void iss_yield(iss *m) { m->yields = m->watch = true; }

int iss_interrupt_enabled(iss *m) { return (m->mie & MIP_MEIP) != 0; }

uint64_t iss_console(iss *m, const uint8_t **text) {
  *text = m->console;
  return m->console_bytes;
}

void iss_run(iss *m, uint64_t instructions, iss_stop *stop) {
  /* A record counts to 2^32: collect long before one can overflow. */
  if (instructions > 1u << 30) instructions = 1u << 30;
  if ((m->uncollected += (uint32_t)(instructions >> 20) + 1) > 2048) iss_collect(m);
  m->given = m->left = instructions;
  m->stopped = m->yields = false;
  m->stop = (iss_stop){ISS_BUDGET, 0, 0};
  if (m->xlen == 64)
    iss_run_64(m);
  else
    iss_run_32(m);
  m->retired += m->given - m->left;
  m->given = m->left = 0;
  *stop = m->stop;
}
