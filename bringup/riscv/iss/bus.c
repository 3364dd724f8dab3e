/* Memory beyond the plain case: the UART, the finisher, devices, faults; and atomics. */
#include <stdlib.h>
#include <string.h>

#include "iss.h"

enum { UART = 0x10000000, UART_BYTES = 0x1000, FINISHER = 0x100000, FINISHER_BYTES = 0x1000 };
enum { LINE_STATUS = 5, TRANSMITTER_EMPTY = 0x60 };

static bool within(uint64_t address, uint64_t base, uint64_t size) { return address - base < size; }

static bool of_a_device(const iss *m, uint64_t address) {
  for (uint32_t i = 0; i < m->device_count; i++)
    if (within(address, m->devices[i].base, m->devices[i].size)) return true;
  return false;
}

static void print(iss *m, uint8_t byte) {
  if (m->console_bytes == m->console_room) {
    uint64_t room = m->console_room ? 2 * m->console_room : 256;
    uint8_t *grown = room > ISS_CONSOLE_MAX ? NULL : realloc(m->console, room);
    if (!grown) return; /* a guest that prints without end does not take the host's memory */
    m->console = grown;
    m->console_room = room;
  }
  m->console[m->console_bytes++] = byte;
}

static void finish(iss *m, uint64_t value) {
  uint64_t kind = value & 0xffff;
  if (kind != 0x5555 && kind != 0x3333) return;
  m->stop = (iss_stop){ISS_EXIT, kind == 0x3333 ? (value >> 16) & 0xffff : 0, 0};
  m->stopped = m->watch = true;
}

int iss_load(iss *m, uint64_t address, uint32_t size, uint64_t *value) {
  *value = 0;
  if (iss_in_ram(m, address, size)) {
    memcpy(value, m->ram + (address - m->ram_base), size);
    return ISS_OK;
  }
  m->watch = true;
  if (within(address, UART, UART_BYTES)) {
    *value = address - UART == LINE_STATUS ? TRANSMITTER_EMPTY : 0;
    return ISS_OK;
  }
  if (within(address, FINISHER, FINISHER_BYTES)) return ISS_OK;
  m->fault_value = address;
  if (!of_a_device(m, address)) return ISS_LOAD_FAULT;
  return m->read(m->user, address, size, value) ? ISS_DEVICE_REFUSED : ISS_OK;
}

int iss_store(iss *m, uint64_t address, uint32_t size, uint64_t value) {
  if (iss_in_ram(m, address, size)) {
    memcpy(m->ram + (address - m->ram_base), &value, size);
    return ISS_OK;
  }
  m->watch = true;
  if (within(address, UART, UART_BYTES)) {
    if (address == UART) print(m, (uint8_t)value);
    return ISS_OK;
  }
  if (within(address, FINISHER, FINISHER_BYTES)) {
    if (address == FINISHER) finish(m, value);
    return ISS_OK;
  }
  m->fault_value = address;
  if (!of_a_device(m, address)) return ISS_STORE_FAULT;
  return m->write(m->user, address, size, value) ? ISS_DEVICE_REFUSED : ISS_OK;
}

static uint64_t combine(uint32_t kind, uint64_t old, uint64_t operand) {
  switch (kind) {
    case 0:
      return old + operand;
    case 1:
      return operand;
    case 4:
      return old ^ operand;
    case 8:
      return old | operand;
    case 12:
      return old & operand;
    case 16:
      return (int64_t)old < (int64_t)operand ? old : operand;
    case 20:
      return (int64_t)old > (int64_t)operand ? old : operand;
    case 24:
      return old < operand ? old : operand;
    default:
      return old > operand ? old : operand;
  }
}

static uint64_t extend(uint64_t value, int32_t size) { return size == 4 ? (uint64_t)(int64_t)(int32_t)value : value; }

/* lr, sc and the read-modify-writes; words are compared sign-extended, which keeps their order, signed and unsigned. */
int iss_atomic(iss *m, const iss_insn *insn) {
  uint64_t address = m->r.x[insn->rs1], old, operand = extend(m->r.x[insn->rs2], insn->imm);
  uint32_t size = (uint32_t)insn->imm;
  if (m->xlen == 32) address = (uint32_t)address;
  m->fault_value = address;
  if (address % size) return insn->kind == 2 ? 4 : ISS_STORE_MISALIGNED;
  if (!iss_in_ram(m, address, size)) return insn->kind == 2 ? ISS_LOAD_FAULT : ISS_STORE_FAULT;
  iss_load(m, address, size, &old);
  old = extend(old, insn->imm);
  if (insn->kind == 2) {
    m->reserved_at = address;
  } else if (insn->kind == 3) {
    bool held = m->reserved_at == address;
    m->reserved_at = ~(uint64_t)0;
    if (held) iss_store(m, address, size, operand);
    old = !held;
  } else {
    iss_store(m, address, size, combine(insn->kind, old, operand));
  }
  m->r.x[insn->rd] = old;
  return ISS_OK;
}
