/* Control and status registers of machine mode. */
#include <stddef.h>

#include "iss.h"

enum {
  FFLAGS = 0x001,
  FRM = 0x002,
  FCSR = 0x003,
  VSTART = 0x008,
  VXSAT = 0x009,
  VXRM = 0x00a,
  VCSR = 0x00f,
  MSTATUS = 0x300,
  MISA = 0x301,
  MIE = 0x304,
  MTVEC = 0x305,
  MCOUNTEREN = 0x306,
  MSTATUSH = 0x310,
  MCOUNTINHIBIT = 0x320,
  MSCRATCH = 0x340,
  MEPC = 0x341,
  MCAUSE = 0x342,
  MTVAL = 0x343,
  MIP = 0x344,
  MCYCLE = 0xb00,
  MINSTRET = 0xb02,
  MCYCLEH = 0xb80,
  MINSTRETH = 0xb82,
  CYCLE = 0xc00,
  TIME = 0xc01,
  INSTRET = 0xc02,
  VL = 0xc20,
  VTYPE = 0xc21,
  VLENB = 0xc22,
  CYCLEH = 0xc80,
  TIMEH = 0xc81,
  INSTRETH = 0xc82,
  MVENDORID = 0xf11,
  MCONFIGPTR = 0xf15,
};

static uint64_t misa(const iss *m) {
  uint64_t letters = 1u << ('I' - 'A');
  if (iss_has(m, ISS_M)) letters |= 1u << ('M' - 'A');
  if (iss_has(m, ISS_A)) letters |= 1u << ('A' - 'A');
  if (iss_has(m, ISS_F)) letters |= 1u << ('F' - 'A');
  if (iss_has(m, ISS_D)) letters |= 1u << ('D' - 'A');
  if (iss_has(m, ISS_C)) letters |= 1u << ('C' - 'A');
  if (iss_has(m, ISS_V)) letters |= 1u << ('V' - 'A');
  return letters | (uint64_t)(m->xlen / 32) << (m->xlen - 2);
}

static uint64_t mstatus(const iss *m) {
  bool dirty = (m->mstatus & MSTATUS_FS) == MSTATUS_FS || (m->mstatus & MSTATUS_VS) == MSTATUS_VS;
  return m->mstatus | (dirty ? (uint64_t)1 << (m->xlen - 1) : 0);
}

/* What floats and vectors keep needs them switched on in mstatus. */
static bool usable(const iss *m, uint32_t number) {
  if (number >= FFLAGS && number <= FCSR) return iss_has(m, ISS_F) && (m->mstatus & MSTATUS_FS);
  bool vector = (number >= VSTART && number <= VCSR) || (number >= VL && number <= VLENB);
  return !vector || (iss_has(m, ISS_V) && (m->mstatus & MSTATUS_VS));
}

static bool is_high(uint32_t number) {
  return number == MCYCLEH || number == MINSTRETH || (number >= CYCLEH && number <= INSTRETH);
}

/* A register that is read as it was written, but for bits that stay zero; NULL if it is another one. */
static uint64_t *plain_register(iss *m, uint32_t number, uint64_t *bits) {
  uint64_t *const registers[] = {&m->mscratch, &m->mepc, &m->mcause, &m->mtval};
  *bits = ~(uint64_t)(number == MEPC ? (iss_has(m, ISS_C) ? 1 : 3) : number == MTVEC ? 2 : 0);
  if (number >= MSCRATCH && number <= MTVAL) return registers[number - MSCRATCH];
  if (number == MTVEC) return &m->mtvec;
  *bits = 0x888;
  return number == MIE ? &m->mie : NULL;
}

void iss_float_changed(iss *m) { m->float_slow = m->frm != 0 || !(m->mstatus & MSTATUS_FS); }

bool iss_csr_read(iss *m, uint32_t number, uint64_t *value) {
  uint64_t count = iss_retired_now(m) + m->retired_offset;
  if (!usable(m, number) || (is_high(number) && m->xlen == 64)) return false;
  uint64_t bits, *plain = plain_register(m, number, &bits);
  if (plain) {
    *value = *plain;
    return true;
  }
  switch (number) {
    case FFLAGS:
      *value = 0;
      return true;
    case FRM:
      *value = m->frm;
      return true;
    case FCSR:
      *value = m->frm << 5;
      return true;
    case VSTART:
      *value = m->vstart;
      return true;
    case VXSAT:
      *value = m->vxsat;
      return true;
    case VXRM:
      *value = m->vxrm;
      return true;
    case VCSR:
      *value = m->vxsat | m->vxrm << 1;
      return true;
    case VL:
      *value = m->vl;
      return true;
    case VTYPE:
      *value = m->vtype;
      return true;
    case VLENB:
      *value = m->vlenb;
      return true;
    case MSTATUS:
      *value = mstatus(m);
      return true;
    case MISA:
      *value = misa(m);
      return true;
    case MIP:
      *value = m->mip;
      return true;
    case MCYCLE:
    case MINSTRET:
    case CYCLE:
    case TIME:
    case INSTRET:
      *value = count;
      return true;
    case MCYCLEH:
    case MINSTRETH:
    case CYCLEH:
    case TIMEH:
    case INSTRETH:
      *value = count >> 32;
      return true;
    case MSTATUSH:
    case MCOUNTEREN:
    case MCOUNTINHIBIT:
      *value = 0;
      return true;
    default:
      *value = 0;
      return number >= MVENDORID && number <= MCONFIGPTR; /* with mhartid among them */
  }
}

bool iss_csr_write(iss *m, uint32_t number, uint64_t value) {
  if (number >> 10 == 3 || !usable(m, number) || (is_high(number) && m->xlen == 64)) return false;
  if (m->xlen == 32) value = (uint32_t)value;
  uint64_t bits, *plain = plain_register(m, number, &bits);
  if (plain) {
    *plain = value & bits;
    m->watch = true; /* it may have been mie */
    return true;
  }
  switch (number) {
    case FFLAGS:
      return true;
    case FRM:
      m->frm = value & 7;
      iss_float_changed(m);
      return true;
    case FCSR:
      m->frm = (value >> 5) & 7;
      iss_float_changed(m);
      return true;
    case VSTART:
      m->vstart = (uint32_t)value & (m->vlenb * 8 - 1);
      return true;
    case VXSAT:
      m->vxsat = value & 1;
      return true;
    case VXRM:
      m->vxrm = value & 3;
      return true;
    case VCSR:
      m->vxsat = value & 1;
      m->vxrm = (value >> 1) & 3;
      return true;
    case MSTATUS:
      m->mstatus = value & (MSTATUS_MIE | MSTATUS_MPIE | (iss_has(m, ISS_F) ? MSTATUS_FS : 0) |
                            (iss_has(m, ISS_V) ? MSTATUS_VS : 0));
      m->mstatus |= MSTATUS_MPP;
      m->watch = true;
      iss_float_changed(m);
      return true;
    case MCYCLE:
    case MINSTRET: {
      /* the write itself retires without being counted */
      uint64_t now = iss_retired_now(m) + 1, keep = m->xlen == 32 ? (now + m->retired_offset) >> 32 << 32 : 0;
      m->retired_offset = (keep | value) - now;
      return true;
    }
    case MCYCLEH:
    case MINSTRETH: {
      uint64_t now = iss_retired_now(m) + 1;
      m->retired_offset = (value << 32 | (uint32_t)(now + m->retired_offset)) - now;
      return true;
    }
    case MISA:
    case MIP:
    case MSTATUSH:
    case MCOUNTEREN:
    case MCOUNTINHIBIT:
      return true;
    default:
      return false;
  }
}

uint64_t iss_csr(iss *m, uint32_t number) {
  uint64_t status = m->mstatus, value = 0;
  if (number == MSTATUS) return mstatus(m);
  m->mstatus |= MSTATUS_FS | MSTATUS_VS; /* the state is there, also while the program may not read it */
  bool exists = iss_csr_read(m, number, &value);
  m->mstatus = status;
  return exists ? value : 0;
}
