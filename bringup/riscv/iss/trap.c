/* Traps and interrupts of machine mode. */
#include "iss.h"

static void enter(iss *m, uint64_t cause, uint64_t value, uint64_t target) {
  m->mepc = m->r.pc;
  m->mcause = cause;
  m->mtval = value;
  bool enabled = m->mstatus & MSTATUS_MIE;
  m->mstatus = (m->mstatus & ~(uint64_t)(MSTATUS_MIE | MSTATUS_MPIE)) | (enabled ? MSTATUS_MPIE : 0) | MSTATUS_MPP;
  m->r.pc = target;
}

bool iss_take_trap(iss *m, uint64_t cause, uint64_t value) {
  uint64_t handler = m->mtvec & ~(uint64_t)3;
  if (!handler || !iss_in_ram(m, handler, 2)) return false;
  enter(m, cause, value, handler);
  return true;
}

bool iss_take_interrupt(iss *m) {
  if (!(m->mip & m->mie & MIP_MEIP) || !(m->mstatus & MSTATUS_MIE)) return false;
  uint64_t handler = m->mtvec & ~(uint64_t)3, number = 11;
  enter(m, (uint64_t)1 << (m->xlen - 1) | number, 0, m->mtvec & 1 ? handler + 4 * number : handler);
  return true;
}

void iss_return_from_trap(iss *m) {
  bool enabled = m->mstatus & MSTATUS_MPIE;
  m->mstatus = (m->mstatus & ~(uint64_t)MSTATUS_MIE) | MSTATUS_MPIE | (enabled ? MSTATUS_MIE : 0);
  m->r.pc = m->mepc;
  m->watch = true;
}
