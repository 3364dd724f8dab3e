/* From the bits of an instruction to its record. What an extension does not allow decodes to `illegal`. */
#include <string.h>

#include "iss.h"
#include "ops.h"

static uint32_t bits(uint32_t raw, int high, int low) { return (raw >> low) & ((2u << (high - low)) - 1); }

static int32_t imm_i(uint32_t raw) { return (int32_t)raw >> 20; }
static int32_t imm_s(uint32_t raw) { return ((int32_t)raw >> 25) * 32 + (int32_t)bits(raw, 11, 7); }
static int32_t imm_b(uint32_t raw) {
  return ((int32_t)raw >> 31) * 4096 +
         (int32_t)(bits(raw, 7, 7) << 11 | bits(raw, 30, 25) << 5 | bits(raw, 11, 8) << 1);
}
static int32_t imm_j(uint32_t raw) {
  return ((int32_t)raw >> 31) * (1 << 20) +
         (int32_t)(bits(raw, 19, 12) << 12 | bits(raw, 20, 20) << 11 | bits(raw, 30, 21) << 1);
}

static uint16_t need(const iss *m, uint32_t extension, uint16_t op) {
  return iss_has(m, extension) ? op : (uint16_t)ISS_OP_illegal;
}

static uint16_t on_64(const iss *m, uint16_t op) { return m->xlen == 64 ? op : (uint16_t)ISS_OP_illegal; }

static uint16_t decode_load(const iss *m, uint32_t raw) {
  static const uint16_t ops[8] = {ISS_OP_lb,  ISS_OP_lh,  ISS_OP_lw,  ISS_OP_ld,
                                  ISS_OP_lbu, ISS_OP_lhu, ISS_OP_lwu, ISS_OP_illegal};
  uint32_t width = bits(raw, 14, 12);
  return width == 3 || width == 6 ? on_64(m, ops[width]) : ops[width];
}

static uint16_t decode_store(const iss *m, uint32_t raw) {
  static const uint16_t ops[4] = {ISS_OP_sb, ISS_OP_sh, ISS_OP_sw, ISS_OP_sd};
  uint32_t width = bits(raw, 14, 12);
  if (width > 3) return ISS_OP_illegal;
  return width == 3 ? on_64(m, ISS_OP_sd) : ops[width];
}

static uint16_t decode_branch(uint32_t raw) {
  static const uint16_t ops[8] = {ISS_OP_beq, ISS_OP_bne, ISS_OP_illegal, ISS_OP_illegal,
                                  ISS_OP_blt, ISS_OP_bge, ISS_OP_bltu,    ISS_OP_bgeu};
  return ops[bits(raw, 14, 12)];
}

static uint16_t decode_shift_imm(const iss *m, uint32_t raw, iss_insn *out) {
  uint32_t top = raw >> 26, amount = bits(raw, 25, 20);
  out->imm = (int32_t)amount;
  if (m->xlen == 32 && amount > 31) return ISS_OP_illegal;
  if (bits(raw, 14, 12) == 1) return top == 0 ? ISS_OP_slli : ISS_OP_illegal;
  return top == 0 ? ISS_OP_srli : top == 16 ? ISS_OP_srai : ISS_OP_illegal;
}

static uint16_t decode_op_imm(const iss *m, uint32_t raw, iss_insn *out) {
  static const uint16_t ops[8] = {ISS_OP_addi, 0, ISS_OP_slti, ISS_OP_sltiu, ISS_OP_xori, 0, ISS_OP_ori, ISS_OP_andi};
  uint32_t kind = bits(raw, 14, 12);
  out->imm = imm_i(raw);
  return kind == 1 || kind == 5 ? decode_shift_imm(m, raw, out) : ops[kind];
}

static uint16_t decode_op_imm_32(uint32_t raw, iss_insn *out) {
  uint32_t top = raw >> 25;
  out->imm = (int32_t)bits(raw, 24, 20);
  switch (bits(raw, 14, 12)) {
    case 0:
      out->imm = imm_i(raw);
      return ISS_OP_addiw;
    case 1:
      return top == 0 ? ISS_OP_slliw : ISS_OP_illegal;
    case 5:
      return top == 0 ? ISS_OP_srliw : top == 32 ? ISS_OP_sraiw : ISS_OP_illegal;
    default:
      return ISS_OP_illegal;
  }
}

/* Arithmetic of two registers: of whole ones, or of words. */
static uint16_t decode_registers(const iss *m, uint32_t raw, const uint16_t *ops, const uint16_t *muls, uint16_t sub,
                                 uint16_t sra) {
  uint32_t kind = bits(raw, 14, 12);
  switch (raw >> 25) {
    case 0:
      return ops[kind];
    case 1:
      return need(m, ISS_M, muls[kind]);
    case 32:
      return kind == 0 ? sub : kind == 5 ? sra : ISS_OP_illegal;
    default:
      return ISS_OP_illegal;
  }
}

static uint16_t decode_op(const iss *m, uint32_t raw) {
  static const uint16_t ops[8] = {ISS_OP_add, ISS_OP_sll, ISS_OP_slt, ISS_OP_sltu,
                                  ISS_OP_xor, ISS_OP_srl, ISS_OP_or,  ISS_OP_and};
  static const uint16_t muls[8] = {ISS_OP_mul, ISS_OP_mulh, ISS_OP_mulhsu, ISS_OP_mulhu,
                                   ISS_OP_div, ISS_OP_divu, ISS_OP_rem,    ISS_OP_remu};
  return decode_registers(m, raw, ops, muls, ISS_OP_sub, ISS_OP_sra);
}

static uint16_t decode_op_32(const iss *m, uint32_t raw) {
  static const uint16_t ops[8] = {ISS_OP_addw,    ISS_OP_sllw, ISS_OP_illegal, ISS_OP_illegal,
                                  ISS_OP_illegal, ISS_OP_srlw, ISS_OP_illegal, ISS_OP_illegal};
  static const uint16_t muls[8] = {ISS_OP_mulw, ISS_OP_illegal, ISS_OP_illegal, ISS_OP_illegal,
                                   ISS_OP_divw, ISS_OP_divuw,   ISS_OP_remw,    ISS_OP_remuw};
  return decode_registers(m, raw, ops, muls, ISS_OP_subw, ISS_OP_sraw);
}

static uint16_t decode_system(uint32_t raw, iss_insn *out) {
  uint32_t kind = bits(raw, 14, 12);
  if (kind & 3) {
    out->kind = (uint8_t)kind;
    out->imm = (int32_t)(raw >> 20);
    return ISS_OP_csr;
  }
  switch (raw) {
    case 0x00000073:
      return ISS_OP_ecall;
    case 0x00100073:
      return ISS_OP_ebreak;
    case 0x30200073:
      return ISS_OP_mret;
    case 0x10500073:
      return ISS_OP_wfi;
    default:
      return ISS_OP_illegal;
  }
}

static uint16_t decode_atomic(const iss *m, uint32_t raw, iss_insn *out) {
  uint32_t width = bits(raw, 14, 12), kind = raw >> 27;
  if (!iss_has(m, ISS_A) || (width != 2 && (width != 3 || m->xlen == 32))) return ISS_OP_illegal;
  out->kind = (uint8_t)kind;
  out->imm = width == 3 ? 8 : 4;
  if (kind == 2) return out->rs2 ? ISS_OP_illegal : ISS_OP_lr;
  if (kind == 3) return ISS_OP_sc;
  return kind <= 1 || (kind % 4 == 0 && kind <= 28) ? ISS_OP_amo : ISS_OP_illegal;
}

/* Loads and stores of floats share their opcodes with those of vectors. */
static uint16_t decode_float_memory(const iss *m, uint32_t raw, iss_insn *out, bool store) {
  out->imm = store ? imm_s(raw) : imm_i(raw);
  switch (bits(raw, 14, 12)) {
    case 1:
      return need(m, ISS_ZFHMIN, store ? ISS_OP_fsh : ISS_OP_flh);
    case 2:
      return need(m, ISS_F, store ? ISS_OP_fsw : ISS_OP_flw);
    case 3:
      return need(m, ISS_D, store ? ISS_OP_fsd : ISS_OP_fld);
    case 4:
      return ISS_OP_illegal;
    default:
      out->imm = (int32_t)raw;
      return need(m, ISS_V, store ? ISS_OP_vstore : ISS_OP_vload);
  }
}

static bool nearest(uint32_t raw) { return bits(raw, 14, 12) == 0 || bits(raw, 14, 12) == 7; }

static uint16_t decode_fused(const iss *m, uint32_t raw, iss_insn *out) {
  static const uint16_t ops[2][4] = {{ISS_OP_fmadd_s, ISS_OP_fmsub_s, ISS_OP_fnmsub_s, ISS_OP_fnmadd_s},
                                     {ISS_OP_fmadd_d, ISS_OP_fmsub_d, ISS_OP_fnmsub_d, ISS_OP_fnmadd_d}};
  uint32_t format = bits(raw, 26, 25);
  out->imm = (int32_t)raw;
  out->rs3 = (uint8_t)(raw >> 27);
  if (format > 1 || !nearest(raw)) return need(m, ISS_F, ISS_OP_floats);
  return need(m, format ? ISS_D : ISS_F, ops[format][bits(raw, 3, 2)]);
}

static uint16_t decode_float(const iss *m, uint32_t raw, iss_insn *out) {
  static const uint16_t ops[2][4] = {{ISS_OP_fadd_s, ISS_OP_fsub_s, ISS_OP_fmul_s, ISS_OP_fdiv_s},
                                     {ISS_OP_fadd_d, ISS_OP_fsub_d, ISS_OP_fmul_d, ISS_OP_fdiv_d}};
  static const uint16_t compares[3] = {ISS_OP_fle_s, ISS_OP_flt_s, ISS_OP_feq_s};
  uint32_t top = raw >> 27, format = bits(raw, 26, 25), kind = bits(raw, 14, 12);
  out->imm = (int32_t)raw;
  if (top < 4 && format < 2 && nearest(raw)) return need(m, format ? ISS_D : ISS_F, ops[format][top]);
  if (raw >> 25 == 0x50 && kind < 3) return need(m, ISS_F, compares[kind]);
  if (raw >> 20 == 0xe00 && kind == 0) return need(m, ISS_F, ISS_OP_fmv_x_w);
  if (raw >> 20 == 0xf00 && kind == 0) return need(m, ISS_F, ISS_OP_fmv_w_x);
  return need(m, ISS_F, ISS_OP_floats);
}

static uint16_t decode_wide(iss *m, uint32_t raw, iss_insn *out) {
  switch (raw & 0x7f) {
    case 0x37:
      out->imm = (int32_t)(raw & 0xfffff000);
      return ISS_OP_lui;
    case 0x17:
      out->imm = (int32_t)(raw & 0xfffff000);
      return ISS_OP_auipc;
    case 0x6f:
      out->imm = imm_j(raw);
      return ISS_OP_jal;
    case 0x67:
      out->imm = imm_i(raw);
      return bits(raw, 14, 12) ? ISS_OP_illegal : ISS_OP_jalr;
    case 0x63:
      out->imm = imm_b(raw);
      return decode_branch(raw);
    case 0x03:
      out->imm = imm_i(raw);
      return decode_load(m, raw);
    case 0x23:
      out->imm = imm_s(raw);
      return decode_store(m, raw);
    case 0x13:
      return decode_op_imm(m, raw, out);
    case 0x1b:
      return on_64(m, decode_op_imm_32(raw, out));
    case 0x33:
      return decode_op(m, raw);
    case 0x3b:
      return on_64(m, decode_op_32(m, raw));
    case 0x0f:
      return bits(raw, 14, 12) == 1 ? ISS_OP_fence_i : bits(raw, 14, 12) ? ISS_OP_illegal : ISS_OP_fence;
    case 0x73:
      return decode_system(raw, out);
    case 0x2f:
      return decode_atomic(m, raw, out);
    case 0x07:
      return decode_float_memory(m, raw, out, false);
    case 0x27:
      return decode_float_memory(m, raw, out, true);
    case 0x43:
    case 0x47:
    case 0x4b:
    case 0x4f:
      return decode_fused(m, raw, out);
    case 0x53:
      return decode_float(m, raw, out);
    case 0x57:
      out->imm = (int32_t)raw;
      return need(m, ISS_V, ISS_OP_vector);
    default:
      return ISS_OP_illegal;
  }
}

static bool writes_integer(uint16_t op) {
  switch (op) {
    case ISS_OP_flh:
    case ISS_OP_flw:
    case ISS_OP_fld:
    case ISS_OP_fmv_w_x:
      return false;
    default:
      return op < ISS_OP_fadd_s || (op >= ISS_OP_flt_s && op <= ISS_OP_fmv_x_w);
  }
}

void iss_decode(iss *m, uint32_t raw, iss_insn *out) {
  memset(out, 0, sizeof *out);
  out->rd = (uint8_t)bits(raw, 11, 7);
  out->rs1 = (uint8_t)bits(raw, 19, 15);
  out->rs2 = (uint8_t)bits(raw, 24, 20);
  out->length = 2;
  out->op = (raw & 3) == 3 ? decode_wide(m, raw, out) : (uint16_t)ISS_OP_illegal;
  if (out->rd == 0 && writes_integer(out->op)) out->rd = 32;
}

int iss_decode_at(iss *m, uint64_t pc) {
  uint16_t low, high;
  if ((pc & 1) || !iss_in_ram(m, pc, 2)) return ISS_FETCH_FAULT;
  iss_insn *out = &m->decoded[(pc - m->ram_base) / 2];
  memcpy(&low, m->ram + (pc - m->ram_base), 2);
  if ((low & 3) == 3) {
    if (!iss_in_ram(m, pc, 4)) return ISS_FETCH_FAULT;
    memcpy(&high, m->ram + (pc + 2 - m->ram_base), 2);
    iss_decode(m, low | (uint32_t)high << 16, out);
  } else {
    iss_decode(m, iss_has(m, ISS_C) ? iss_expand(m->xlen, low) : 0, out);
    out->length = 1;
  }
  m->pages[(pc - m->ram_base) / 4096] = 1;
  return ISS_OK;
}
