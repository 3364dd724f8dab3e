/* Compressed instructions: each is written as the 32-bit instruction that it stands for. */
#include "iss.h"

static uint32_t bits(uint32_t raw, int high, int low) { return (raw >> low) & ((2u << (high - low)) - 1); }
static uint32_t at(uint32_t raw, int from, int to) { return ((raw >> from) & 1) << to; }

enum { LOAD = 0x03, LOAD_FP = 0x07, OP_IMM = 0x13, OP_IMM_32 = 0x1b, STORE = 0x23, STORE_FP = 0x27 };
enum { OP = 0x33, LUI = 0x37, OP_32 = 0x3b, BRANCH = 0x63, JALR = 0x67, JAL = 0x6f };

static uint32_t make_i(uint32_t opcode, uint32_t kind, uint32_t rd, uint32_t rs1, int32_t imm) {
  return opcode | rd << 7 | kind << 12 | rs1 << 15 | (uint32_t)imm << 20;
}
static uint32_t make_r(uint32_t opcode, uint32_t kind, uint32_t top, uint32_t rd, uint32_t rs1, uint32_t rs2) {
  return opcode | rd << 7 | kind << 12 | rs1 << 15 | rs2 << 20 | top << 25;
}
static uint32_t make_s(uint32_t opcode, uint32_t kind, uint32_t rs1, uint32_t rs2, uint32_t imm) {
  return opcode | bits(imm, 4, 0) << 7 | kind << 12 | rs1 << 15 | rs2 << 20 | bits(imm, 11, 5) << 25;
}
static uint32_t make_branch(uint32_t kind, uint32_t rs1, int32_t to) {
  uint32_t imm = (uint32_t)to;
  return BRANCH | at(imm, 11, 7) | bits(imm, 4, 1) << 8 | kind << 12 | rs1 << 15 | bits(imm, 10, 5) << 25 |
         at(imm, 12, 31);
}
static uint32_t make_jump(uint32_t rd, int32_t to) {
  uint32_t imm = (uint32_t)to;
  return JAL | rd << 7 | bits(imm, 19, 12) << 12 | at(imm, 11, 20) | bits(imm, 10, 1) << 21 | at(imm, 20, 31);
}

static int32_t imm6(uint32_t raw) { return (int32_t)bits(raw, 6, 2) - (int32_t)at(raw, 12, 5); }

static int32_t jump_offset(uint32_t raw) {
  uint32_t up = at(raw, 8, 10) | bits(raw, 10, 9) << 8 | at(raw, 6, 7) | at(raw, 7, 6) | at(raw, 2, 5) |
                at(raw, 11, 4) | bits(raw, 5, 3) << 1;
  return (int32_t)up - (int32_t)at(raw, 12, 11);
}
static int32_t branch_offset(uint32_t raw) {
  uint32_t up = bits(raw, 6, 5) << 6 | at(raw, 2, 5) | bits(raw, 11, 10) << 3 | bits(raw, 4, 3) << 1;
  return (int32_t)up - (int32_t)at(raw, 12, 8);
}
static uint32_t word_offset(uint32_t raw) { return at(raw, 5, 6) | bits(raw, 12, 10) << 3 | at(raw, 6, 2); }
static uint32_t double_offset(uint32_t raw) { return bits(raw, 6, 5) << 6 | bits(raw, 12, 10) << 3; }

static uint32_t quadrant_0(uint32_t xlen, uint32_t raw) {
  uint32_t near = 8 + bits(raw, 4, 2), base = 8 + bits(raw, 9, 7), sp = 2;
  uint32_t imm = bits(raw, 10, 7) << 6 | bits(raw, 12, 11) << 4 | at(raw, 5, 3) | at(raw, 6, 2);
  bool wide = xlen == 64;
  switch (raw >> 13) {
    case 0:
      return imm ? make_i(OP_IMM, 0, near, sp, (int32_t)imm) : 0;
    case 1:
      return make_i(LOAD_FP, 3, near, base, (int32_t)double_offset(raw));
    case 2:
      return make_i(LOAD, 2, near, base, (int32_t)word_offset(raw));
    case 3:
      return wide ? make_i(LOAD, 3, near, base, (int32_t)double_offset(raw))
                  : make_i(LOAD_FP, 2, near, base, (int32_t)word_offset(raw));
    case 5:
      return make_s(STORE_FP, 3, base, near, double_offset(raw));
    case 6:
      return make_s(STORE, 2, base, near, word_offset(raw));
    case 7:
      return wide ? make_s(STORE, 3, base, near, double_offset(raw))
                  : make_s(STORE_FP, 2, base, near, word_offset(raw));
    default:
      return 0;
  }
}

static uint32_t arithmetic(uint32_t xlen, uint32_t raw) {
  uint32_t rd = 8 + bits(raw, 9, 7), rs2 = 8 + bits(raw, 4, 2), amount = bits(raw, 6, 2) | at(raw, 12, 5);
  static const uint8_t kinds[4] = {0, 4, 6, 7}; /* sub xor or and */
  switch (bits(raw, 11, 10)) {
    case 0:
    case 1:
      if (xlen == 32 && amount > 31) return 0;
      return make_i(OP_IMM, 5, rd, rd, (int32_t)(amount | at(raw, 10, 10)));
    case 2:
      return make_i(OP_IMM, 7, rd, rd, imm6(raw));
    default:
      break;
  }
  uint32_t which = bits(raw, 6, 5);
  if (!at(raw, 12, 0)) return make_r(OP, kinds[which], which == 0 ? 32 : 0, rd, rd, rs2);
  if (which > 1 || xlen == 32) return 0;
  return make_r(OP_32, 0, which == 0 ? 32 : 0, rd, rd, rs2);
}

static uint32_t lui_or_sp(uint32_t raw, uint32_t rd) {
  uint32_t sp = 2;
  if (rd == sp) {
    uint32_t up = bits(raw, 4, 3) << 7 | at(raw, 5, 6) | at(raw, 2, 5) | at(raw, 6, 4);
    int32_t imm = (int32_t)up - (int32_t)at(raw, 12, 9);
    return imm ? make_i(OP_IMM, 0, sp, sp, imm) : 0;
  }
  return imm6(raw) ? LUI | rd << 7 | (uint32_t)imm6(raw) << 12 : 0;
}

static uint32_t quadrant_1(uint32_t xlen, uint32_t raw) {
  uint32_t rd = bits(raw, 11, 7), near = 8 + bits(raw, 9, 7), zero = 0, ra = 1;
  switch (raw >> 13) {
    case 0:
      return make_i(OP_IMM, 0, rd, rd, imm6(raw));
    case 1:
      if (xlen == 32) return make_jump(ra, jump_offset(raw));
      return rd ? make_i(OP_IMM_32, 0, rd, rd, imm6(raw)) : 0;
    case 2:
      return make_i(OP_IMM, 0, rd, zero, imm6(raw));
    case 3:
      return lui_or_sp(raw, rd);
    case 4:
      return arithmetic(xlen, raw);
    case 5:
      return make_jump(zero, jump_offset(raw));
    case 6:
      return make_branch(0, near, branch_offset(raw));
    default:
      return make_branch(1, near, branch_offset(raw));
  }
}

static uint32_t move_or_jump(uint32_t raw, uint32_t rd, uint32_t rs2) {
  uint32_t zero = 0, ra = 1;
  if (!at(raw, 12, 0)) {
    if (rs2) return make_r(OP, 0, 0, rd, zero, rs2);
    return rd ? make_i(JALR, 0, zero, rd, 0) : 0;
  }
  if (rs2) return make_r(OP, 0, 0, rd, rd, rs2);
  return rd ? make_i(JALR, 0, ra, rd, 0) : 0x00100073; /* c.ebreak */
}

static uint32_t quadrant_2(uint32_t xlen, uint32_t raw) {
  uint32_t rd = bits(raw, 11, 7), rs2 = bits(raw, 6, 2), sp = 2;
  uint32_t amount = bits(raw, 6, 2) | at(raw, 12, 5);
  int32_t word = (int32_t)(bits(raw, 3, 2) << 6 | at(raw, 12, 5) | bits(raw, 6, 4) << 2);
  int32_t twice = (int32_t)(bits(raw, 4, 2) << 6 | at(raw, 12, 5) | bits(raw, 6, 5) << 3);
  uint32_t store_word = bits(raw, 8, 7) << 6 | bits(raw, 12, 9) << 2;
  uint32_t store_twice = bits(raw, 9, 7) << 6 | bits(raw, 12, 10) << 3;
  bool wide = xlen == 64;
  switch (raw >> 13) {
    case 0:
      return !wide && amount > 31 ? 0 : make_i(OP_IMM, 1, rd, rd, (int32_t)amount);
    case 1:
      return make_i(LOAD_FP, 3, rd, sp, twice);
    case 2:
      return rd ? make_i(LOAD, 2, rd, sp, word) : 0;
    case 3:
      if (!wide) return make_i(LOAD_FP, 2, rd, sp, word);
      return rd ? make_i(LOAD, 3, rd, sp, twice) : 0;
    case 4:
      return move_or_jump(raw, rd, rs2);
    case 5:
      return make_s(STORE_FP, 3, sp, rs2, store_twice);
    case 6:
      return make_s(STORE, 2, sp, rs2, store_word);
    default:
      return wide ? make_s(STORE, 3, sp, rs2, store_twice) : make_s(STORE_FP, 2, sp, rs2, store_word);
  }
}

uint32_t iss_expand(uint32_t xlen, uint16_t raw) {
  switch (raw & 3) {
    case 0:
      return quadrant_0(xlen, raw);
    case 1:
      return quadrant_1(xlen, raw);
    default:
      return quadrant_2(xlen, raw);
  }
}
