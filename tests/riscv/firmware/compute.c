// Two Compute devices that are each other's peer; exits with the number of a failed step.
#include <stdint.h>

#define ONE ((volatile uint32_t *)0x10300000)
#define OTHER ((volatile uint32_t *)0x10301000)
enum { OPERAND_A, OPERAND_B, OPERATION, RESULT, STATUS, CONTROL, PEER_OUT, PEER_IN };
enum { ADD, SUB, MUL, DIV };
enum { BUSY = 1, READY = 2, ERROR = 4, PEER = 8 };
enum { RESET = 1, TRIGGER = 2 };

static uint32_t status;

static uint32_t compute(uint32_t operation, uint32_t a, uint32_t b) {
  ONE[OPERAND_A] = a;
  ONE[OPERAND_B] = b;
  ONE[OPERATION] = operation;
  ONE[CONTROL] = TRIGGER;
  while ((status = ONE[STATUS]) & BUSY) {
  }
  return ONE[RESULT];
}

int main(void) {
  if (compute(ADD, 0xfffffffe, 5) != 3 || status != READY) return 1;
  if (compute(SUB, 3, 5) != 0xfffffffe || status != READY) return 2;
  if (compute(MUL, 0x10001, 0x10001) != 0x20001 || status != READY) return 3;
  if (compute(DIV, 0xffffffff, 16) != 0x0fffffff || status != READY) return 4;
  if (compute(DIV, 1, 0) != 0 || status != ERROR) return 5;
  if (compute(9, 1, 1) != 0 || status != ERROR) return 6;
  if (compute(ADD, 2, 2) != 4 || status != READY) return 7; // the error is gone
  if (ONE[CONTROL] != TRIGGER) return 8;                    // it reads back
  ONE[PEER_OUT] = 0xabcd;                                   // asks the other one, which has computed nothing
  if (OTHER[STATUS] & PEER) return 9;
  while (!(ONE[STATUS] & PEER)) {
  }
  if (ONE[PEER_IN] != 0 || ONE[STATUS] != READY || ONE[PEER_OUT] != 0xabcd) return 10;
  OTHER[PEER_OUT] = 1;
  while (!(OTHER[STATUS] & PEER)) {
  }
  if (OTHER[PEER_IN] != 4 || OTHER[STATUS] & PEER) return 11;
  ONE[CONTROL] = RESET;
  if (ONE[STATUS] != 0 || ONE[RESULT] != 0 || ONE[OPERAND_A] != 0 || ONE[CONTROL] != 0) return 12;
  return 0;
}
