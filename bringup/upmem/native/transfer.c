/* Copies between the host and DPUs: of one, of all in one batch, to all at once, piece by piece. */
#include <stdlib.h>
#include <string.h>

#include "upmem.h"

/* Below this the workers are not woken: a copy of that size takes about as long as waking them. */
enum { SHARED_BYTES = 1 << 20 };

/* Where an address of a symbol lies on the host. */
static uint8_t *place(struct dpu_t *dpu, uint32_t address) {
  if (address >= MRAM_AT) return dpu->mram + (address - MRAM_AT);
  if (!dpu->wram_bytes) { /* as loaded: what the worker that will run it starts with */
    struct copy *copy;
    if (program_copy(dpu->program, worker_of(dpu->index, dpu->of->dpu_count), &copy) != DPU_OK) return NULL;
    memcpy(dpu->wram, copy->fresh, dpu->program->data_bytes);
    dpu->wram_bytes = dpu->program->data_bytes;
  }
  return dpu->wram + address;
}

static dpu_error_t check(struct dpu_symbol_t symbol, uint32_t offset, size_t length) {
  bool mram = symbol.address >= MRAM_AT;
  uint32_t unit = mram ? 8 : 4;
  dpu_error_t error = mram ? DPU_ERR_INVALID_MRAM_ACCESS : DPU_ERR_INVALID_WRAM_ACCESS;
  if (offset > symbol.size || length > symbol.size - offset)
    return failed(error, "%zu bytes at offset %u of a symbol of %u bytes", length, offset, symbol.size);
  if ((symbol.address + offset) % unit || length % unit)
    return failed(error, "%zu bytes at offset %u: transfers with %s are multiples of %u bytes at multiples of %u",
                  length, offset, mram ? "MRAM" : "WRAM", unit, unit);
  return DPU_OK;
}

static dpu_error_t move(struct dpu_t *dpu, dpu_xfer_t direction, uint32_t address, void *host, size_t length) {
  if (address < MRAM_AT && !dpu->program)
    return failed(DPU_ERR_NO_PROGRAM_LOADED, "DPU %u has no program, and so no symbols", dpu->index);
  uint8_t *there = place(dpu, address);
  if (!there) return DPU_ERR_SYSTEM;
  if (address >= MRAM_AT && direction == DPU_XFER_TO_DPU) written_mark(dpu, address - MRAM_AT, length);
  memcpy(direction == DPU_XFER_TO_DPU ? there : host, direction == DPU_XFER_TO_DPU ? host : there, length);
  return DPU_OK;
}

/* For the report: one transfer, of `bytes` with each of `dpus`. */
static void note(dpu_xfer_t direction, bool broadcast, uint32_t dpus, size_t bytes) {
  if (events_wanted())
    event("{\"event\": \"transfer\", \"to\": %s, \"broadcast\": %s, \"dpus\": %u, \"bytes\": %zu}\n",
          direction == DPU_XFER_TO_DPU ? "true" : "false", broadcast ? "true" : "false", dpus, bytes);
}

struct batch {
  struct dpu_t **dpus;
  uint32_t count, address;
  dpu_xfer_t direction;
  const uint8_t *same; /* a broadcast's source; else each DPU's own buffer */
  size_t length;
  volatile dpu_error_t status;
};

static void move_share(void *argument, uint32_t index) {
  struct batch *batch = argument;
  for (uint32_t i = 0; i < batch->count; i++) {
    struct dpu_t *dpu = batch->dpus[i];
    if (worker_of(dpu->index, dpu->of->dpu_count) != index) continue;
    void *host = batch->same ? (void *)batch->same : dpu->buffer;
    dpu_error_t status = host ? move(dpu, batch->direction, batch->address, host, batch->length) : DPU_OK;
    if (status != DPU_OK) batch->status = status;
  }
}

static dpu_error_t move_all(struct dpu_set_t set, dpu_xfer_t direction, uint32_t address, const void *same,
                            size_t length) {
  uint32_t count = set_size(set);
  struct dpu_t **dpus = malloc(count * sizeof *dpus);
  if (!dpus) return failed(DPU_ERR_SYSTEM, "no memory for a transfer");
  set_dpus(set, dpus);
  struct batch batch = {dpus, count, address, direction, same, length, DPU_OK};
  if (count * length >= SHARED_BYTES && count > 1 && pool_size() > 1)
    pool_run(move_share, &batch, NULL);
  else
    for (uint32_t worker = 0; worker < pool_size(); worker++) move_share(&batch, worker);
  free(dpus);
  if (batch.status != DPU_OK) return failed(batch.status, "a DPU of the set has no program");
  note(direction, same != NULL, count, length);
  return DPU_OK;
}

static dpu_error_t find(struct dpu_set_t set, const char *name, struct dpu_symbol_t *symbol) {
  struct dpu_t *first = set.kind == DPU_SET_DPU ? set.dpu : &set.list.ranks[0]->dpus[0];
  if (!first->program) return failed(DPU_ERR_NO_PROGRAM_LOADED, "the set has no program, and so no symbol '%s'", name);
  return dpu_get_symbol(first->program, name, symbol);
}

/* ---- by symbol ---- */
UPMEM_API dpu_error_t dpu_broadcast_to_symbol(struct dpu_set_t set, struct dpu_symbol_t symbol, uint32_t offset,
                                              const void *src, size_t length, dpu_xfer_flags_t flags) {
  (void)flags;
  dpu_error_t status = check(symbol, offset, length);
  return status == DPU_OK ? move_all(set, DPU_XFER_TO_DPU, symbol.address + offset, src, length) : status;
}
UPMEM_API dpu_error_t dpu_copy_to_symbol(struct dpu_set_t set, struct dpu_symbol_t symbol, uint32_t offset,
                                         const void *src, size_t length) {
  return dpu_broadcast_to_symbol(set, symbol, offset, src, length, DPU_XFER_DEFAULT);
}
UPMEM_API dpu_error_t dpu_copy_from_symbol(struct dpu_set_t set, struct dpu_symbol_t symbol, uint32_t offset, void *dst,
                                           size_t length) {
  if (set.kind != DPU_SET_DPU && set_size(set) != 1)
    return failed(DPU_ERR_INVALID_DPU_SET, "dpu_copy_from reads one DPU, and the set has %u; use dpu_push_xfer",
                  set_size(set));
  dpu_error_t status = check(symbol, offset, length);
  struct dpu_t *dpu;
  set_dpus(set, &dpu);
  note(DPU_XFER_FROM_DPU, false, 1, length);
  return status == DPU_OK ? move(dpu, DPU_XFER_FROM_DPU, symbol.address + offset, dst, length) : status;
}
UPMEM_API dpu_error_t dpu_push_xfer_symbol(struct dpu_set_t set, dpu_xfer_t xfer, struct dpu_symbol_t symbol,
                                           uint32_t offset, size_t length, dpu_xfer_flags_t flags) {
  dpu_error_t status = check(symbol, offset, length);
  if (status == DPU_OK) status = move_all(set, xfer, symbol.address + offset, NULL, length);
  if (!(flags & DPU_XFER_NO_RESET)) {
    struct dpu_set_t one;
    DPU_FOREACH(set, one) one.dpu->buffer = NULL;
  }
  return status;
}

/* ---- by name ---- */
UPMEM_API dpu_error_t dpu_copy_to(struct dpu_set_t set, const char *name, uint32_t offset, const void *src,
                                  size_t length) {
  struct dpu_symbol_t symbol;
  dpu_error_t status = find(set, name, &symbol);
  return status == DPU_OK ? dpu_copy_to_symbol(set, symbol, offset, src, length) : status;
}
UPMEM_API dpu_error_t dpu_copy_from(struct dpu_set_t set, const char *name, uint32_t offset, void *dst, size_t length) {
  struct dpu_symbol_t symbol;
  dpu_error_t status = find(set, name, &symbol);
  return status == DPU_OK ? dpu_copy_from_symbol(set, symbol, offset, dst, length) : status;
}
UPMEM_API dpu_error_t dpu_broadcast_to(struct dpu_set_t set, const char *name, uint32_t offset, const void *src,
                                       size_t length, dpu_xfer_flags_t flags) {
  struct dpu_symbol_t symbol;
  dpu_error_t status = find(set, name, &symbol);
  return status == DPU_OK ? dpu_broadcast_to_symbol(set, symbol, offset, src, length, flags) : status;
}
UPMEM_API dpu_error_t dpu_prepare_xfer(struct dpu_set_t set, void *buffer) {
  struct dpu_set_t one;
  DPU_FOREACH(set, one) one.dpu->buffer = buffer;
  return DPU_OK;
}
UPMEM_API dpu_error_t dpu_push_xfer(struct dpu_set_t set, dpu_xfer_t xfer, const char *name, uint32_t offset,
                                    size_t length, dpu_xfer_flags_t flags) {
  struct dpu_symbol_t symbol;
  dpu_error_t status = find(set, name, &symbol);
  return status == DPU_OK ? dpu_push_xfer_symbol(set, xfer, symbol, offset, length, flags) : status;
}

UPMEM_API dpu_error_t dpu_push_sg_xfer_symbol(struct dpu_set_t set, dpu_xfer_t xfer, struct dpu_symbol_t symbol,
                                              uint32_t offset, size_t length, get_block_t *get_block,
                                              dpu_sg_xfer_flags_t flags) {
  if (symbol.address < MRAM_AT) return failed(DPU_ERR_SG_NOT_MRAM_SYMBOL, "address %#x is in WRAM", symbol.address);
  dpu_error_t status = check(symbol, offset, length);
  if (status != DPU_OK) return status;
  struct dpu_set_t one;
  uint32_t index;
  DPU_FOREACH(set, one, index) {
    size_t done = 0;
    struct sg_block_info block = {0};
    for (uint32_t b = 0; get_block->f(&block, index, b, get_block->args); b++, done += block.length) {
      if (block.length > length - done)
        return failed(DPU_ERR_SG_LENGTH_MISMATCH, "the blocks of DPU %u are longer than %zu bytes", index, length);
      status = move(one.dpu, xfer, symbol.address + offset + (uint32_t)done, block.addr, block.length);
      if (status != DPU_OK) return status;
    }
    if (done != length && !(flags & DPU_SG_XFER_DISABLE_LENGTH_CHECK))
      return failed(DPU_ERR_SG_LENGTH_MISMATCH, "the blocks of DPU %u have %zu bytes, not %zu", index, done, length);
    if (xfer == DPU_XFER_TO_DPU && done < length) {
      memset(one.dpu->mram + (symbol.address - MRAM_AT) + offset + done, 0, length - done);
      written_mark(one.dpu, symbol.address - MRAM_AT + offset + (uint32_t)done, length - done);
    }
  }
  note(xfer, false, set_size(set), length);
  return DPU_OK;
}
UPMEM_API dpu_error_t dpu_push_sg_xfer(struct dpu_set_t set, dpu_xfer_t xfer, const char *name, uint32_t offset,
                                       size_t length, get_block_t *get_block, dpu_sg_xfer_flags_t flags) {
  struct dpu_symbol_t symbol;
  dpu_error_t status = find(set, name, &symbol);
  if (status != DPU_OK) return status;
  return dpu_push_sg_xfer_symbol(set, xfer, symbol, offset, length, get_block, flags);
}
