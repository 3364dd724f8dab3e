/* Start of a bare-metal program in machine mode: registers, stack, cleared memory, main, and its exit code.

   A trap that the program does not handle itself is written to the UART as one line, which the machines turn into a
   Python error: "bringup trap: <mcause> <mepc> <mtval> <x1> … <x31>", in hexadecimal; the exit code is then 255. */

#if __riscv_xlen == 64
#define STORE sd
#define LOAD ld
#define WORD 8
#define DIGITS 16
#else
#define STORE sw
#define LOAD lw
#define WORD 4
#define DIGITS 8
#endif
#define FINISHER 0x100000
#define UART 0x10000000

  /* The first instruction of memory: QEMU starts there, whatever the entry of the ELF file is. */
  .section .start, "ax"
  .globl _start
  .type _start, @function
_start:
  la t0, bringup_start
  jr t0
  .size _start, . - _start

  .section .text.bringup_start, "ax"
  .globl bringup_start
  .type bringup_start, @function
bringup_start:
  .option push
  .option norelax /* the linker may not use gp to compute gp */
  la gp, __global_pointer$
  .option pop
  la sp, __stack_top
  la t0, bringup_trap
  csrw mtvec, t0
  li t0, 0x6600 /* FS and VS: floating point and vectors are off until someone wants them */
  csrs mstatus, t0
  la t0, __bss_start
  la t1, __bss_end
  bgeu t0, t1, 2f
1:
  STORE zero, 0(t0)
  addi t0, t0, WORD
  bltu t0, t1, 1b
2:
  call main
  .size bringup_start, . - bringup_start
  /* goes on: exits with what main returned */

  /* _Noreturn void bringup_exit(int code) */
  .globl bringup_exit
  .type bringup_exit, @function
bringup_exit:
  li t0, 0x5555
  beqz a0, 1f
  slli t0, a0, 16
  li t1, 0x3333
  or t0, t0, t1
1:
  li t1, FINISHER
  sw t0, 0(t1)
2:
  j 2b
  .size bringup_exit, . - bringup_exit

  /* Uses no stack: a stack that overflowed is one of the things it reports. */
  .balign 4
  .globl bringup_trap
  .type bringup_trap, @function
bringup_trap:
  csrw mscratch, sp
  la sp, bringup_trap_registers
  STORE ra, 1 * WORD(sp)
  STORE gp, 3 * WORD(sp)
  STORE tp, 4 * WORD(sp)
  STORE t0, 5 * WORD(sp)
  STORE t1, 6 * WORD(sp)
  STORE t2, 7 * WORD(sp)
  STORE s0, 8 * WORD(sp)
  STORE s1, 9 * WORD(sp)
  STORE a0, 10 * WORD(sp)
  STORE a1, 11 * WORD(sp)
  STORE a2, 12 * WORD(sp)
  STORE a3, 13 * WORD(sp)
  STORE a4, 14 * WORD(sp)
  STORE a5, 15 * WORD(sp)
  STORE a6, 16 * WORD(sp)
  STORE a7, 17 * WORD(sp)
  STORE s2, 18 * WORD(sp)
  STORE s3, 19 * WORD(sp)
  STORE s4, 20 * WORD(sp)
  STORE s5, 21 * WORD(sp)
  STORE s6, 22 * WORD(sp)
  STORE s7, 23 * WORD(sp)
  STORE s8, 24 * WORD(sp)
  STORE s9, 25 * WORD(sp)
  STORE s10, 26 * WORD(sp)
  STORE s11, 27 * WORD(sp)
  STORE t3, 28 * WORD(sp)
  STORE t4, 29 * WORD(sp)
  STORE t5, 30 * WORD(sp)
  STORE t6, 31 * WORD(sp)
  csrr t0, mscratch
  STORE t0, 2 * WORD(sp)

  la t0, 9f /* a trap in here: give up */
  csrw mtvec, t0
  li s0, UART
  la s1, bringup_trap_words
1:
  lbu t0, 0(s1)
  beqz t0, 2f
  sb t0, 0(s0)
  addi s1, s1, 1
  j 1b
2:
  csrr a0, mcause
  jal 5f
  csrr a0, mepc
  jal 5f
  csrr a0, mtval
  jal 5f
  addi s1, sp, WORD
  addi s2, sp, 32 * WORD
3:
  LOAD a0, 0(s1)
  jal 5f
  addi s1, s1, WORD
  bltu s1, s2, 3b
  li t0, 10
  sb t0, 0(s0)
9:
  li a0, 255
  j bringup_exit

  /* A space and the digits of a0. */
5:
  li t0, 32
  sb t0, 0(s0)
  li t1, DIGITS
6:
  srli t0, a0, 4 * (DIGITS - 1)
  slli a0, a0, 4
  li t2, 10
  bltu t0, t2, 7f
  addi t0, t0, 39 /* from after '9' to 'a' */
7:
  addi t0, t0, 48
  sb t0, 0(s0)
  addi t1, t1, -1
  bnez t1, 6b
  ret
  .size bringup_trap, . - bringup_trap

  .section .rodata
bringup_trap_words:
  .asciz "\nbringup trap:"

  .bss
  .balign 16
  .type bringup_trap_registers, @object
bringup_trap_registers:
  .zero 32 * WORD
  .size bringup_trap_registers, . - bringup_trap_registers
