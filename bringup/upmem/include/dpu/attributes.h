/* The words of the DPU dialect: which memory a variable lies in, and what a pointer points into.
 *
 * On the host an MRAM pointer is in an address space of its own (the GS segment, whose base is the MRAM of the DPU that
 * runs), so that a dereference reaches MRAM and mixing the two kinds of pointers is a compiler error, as on the chip.
 */
#ifndef BRINGUP_DPU_ATTRIBUTES_H
#define BRINGUP_DPU_ATTRIBUTES_H

#ifdef __x86_64__
#define __mram_ptr __seg_gs
#else
#define __mram_ptr
#endif

#define __used __attribute__((used))
#define __noinline __attribute__((noinline))
#define __section(name) __attribute__((section(name)))
#define __aligned(bytes) __attribute__((aligned(bytes)))
#define __weak __attribute__((weak))

#define __dma_aligned __aligned(8)
#define __mram __mram_ptr __section(".mram.data") __dma_aligned __used
#define __mram_keep __mram_ptr __section(".mram.keep") __dma_aligned __used
#define __mram_noinit __mram_ptr __section(".mram.noinit") __dma_aligned __used
#define __mram_noinit_keep __mram_ptr __section(".mram.noinit_keep") __dma_aligned __used
#define __host __section(".dpu_host") __aligned(8) __used
#define __dma_aligned_host __host
#define __lower_data(name) __attribute__((section(".data." name)))
#define __atomic_bit

#endif
