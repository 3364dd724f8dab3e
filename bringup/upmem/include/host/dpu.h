/* The host's side of an UPMEM system: allocate DPUs, load a program, copy, launch.
 *
 * Own text for a published interface: names and meanings are those of UPMEM's SDK, so that programs for it compile.
 */
#ifndef BRINGUP_UPMEM_DPU_H
#define BRINGUP_UPMEM_DPU_H

#include <dpu_error.h>
#include <dpu_types.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DPU_ALLOCATE_ALL UINT32_MAX
#define DPU_MAX_NR_DPUS_PER_RANK 64

dpu_error_t dpu_alloc(uint32_t nr_dpus, const char *profile, struct dpu_set_t *dpu_set);
dpu_error_t dpu_alloc_ranks(uint32_t nr_ranks, const char *profile, struct dpu_set_t *dpu_set);
dpu_error_t dpu_free(struct dpu_set_t dpu_set);
dpu_error_t dpu_get_nr_ranks(struct dpu_set_t dpu_set, uint32_t *nr_ranks);
dpu_error_t dpu_get_nr_dpus(struct dpu_set_t dpu_set, uint32_t *nr_dpus);

dpu_error_t dpu_load(struct dpu_set_t dpu_set, const char *path, struct dpu_program_t **program);
dpu_error_t dpu_load_from_memory(struct dpu_set_t dpu_set, uint8_t *buffer, size_t size,
                                 struct dpu_program_t **program);
dpu_error_t dpu_load_from_incbin(struct dpu_set_t dpu_set, struct dpu_incbin_t *incbin, struct dpu_program_t **program);
dpu_error_t dpu_get_symbol(struct dpu_program_t *program, const char *symbol_name, struct dpu_symbol_t *symbol);

dpu_error_t dpu_launch(struct dpu_set_t dpu_set, dpu_launch_policy_t policy);
dpu_error_t dpu_status(struct dpu_set_t dpu_set, bool *done, bool *fault);
dpu_error_t dpu_sync(struct dpu_set_t dpu_set);
dpu_error_t dpu_callback(struct dpu_set_t dpu_set,
                         dpu_error_t (*callback)(struct dpu_set_t set, uint32_t rank_id, void *args), void *args,
                         dpu_callback_flags_t flags);

dpu_error_t dpu_copy_to(struct dpu_set_t dpu_set, const char *symbol_name, uint32_t symbol_offset, const void *src,
                        size_t length);
dpu_error_t dpu_copy_from(struct dpu_set_t dpu_set, const char *symbol_name, uint32_t symbol_offset, void *dst,
                          size_t length);
dpu_error_t dpu_copy_to_symbol(struct dpu_set_t dpu_set, struct dpu_symbol_t symbol, uint32_t symbol_offset,
                               const void *src, size_t length);
dpu_error_t dpu_copy_from_symbol(struct dpu_set_t dpu_set, struct dpu_symbol_t symbol, uint32_t symbol_offset,
                                 void *dst, size_t length);
dpu_error_t dpu_prepare_xfer(struct dpu_set_t dpu_set, void *buffer);
dpu_error_t dpu_push_xfer(struct dpu_set_t dpu_set, dpu_xfer_t xfer, const char *symbol_name, uint32_t symbol_offset,
                          size_t length, dpu_xfer_flags_t flags);
dpu_error_t dpu_push_xfer_symbol(struct dpu_set_t dpu_set, dpu_xfer_t xfer, struct dpu_symbol_t symbol,
                                 uint32_t symbol_offset, size_t length, dpu_xfer_flags_t flags);
dpu_error_t dpu_broadcast_to(struct dpu_set_t dpu_set, const char *symbol_name, uint32_t symbol_offset, const void *src,
                             size_t length, dpu_xfer_flags_t flags);
dpu_error_t dpu_broadcast_to_symbol(struct dpu_set_t dpu_set, struct dpu_symbol_t symbol, uint32_t symbol_offset,
                                    const void *src, size_t length, dpu_xfer_flags_t flags);
dpu_error_t dpu_push_sg_xfer(struct dpu_set_t dpu_set, dpu_xfer_t xfer, const char *symbol_name, uint32_t symbol_offset,
                             size_t length, get_block_t *get_block, dpu_sg_xfer_flags_t flags);
dpu_error_t dpu_push_sg_xfer_symbol(struct dpu_set_t dpu_set, dpu_xfer_t xfer, struct dpu_symbol_t symbol,
                                    uint32_t symbol_offset, size_t length, get_block_t *get_block,
                                    dpu_sg_xfer_flags_t flags);
/* Writes what the DPUs of the set have printed since the last call. */
dpu_error_t dpu_log_read(struct dpu_set_t dpu_set, FILE *stream);

/* How the loops below walk. */
struct dpu_set_rank_iterator_t {
  struct dpu_set_t *set;
  uint32_t count;
  uint32_t next_idx;
  bool has_next;
  struct dpu_set_t next;
};
struct dpu_set_dpu_iterator_t {
  struct dpu_set_rank_iterator_t rank_iterator;
  uint32_t count;
  uint32_t next_idx;
  bool has_next;
  struct dpu_set_t next;
};
struct dpu_set_rank_iterator_t dpu_set_rank_iterator_from(struct dpu_set_t *set);
void dpu_set_rank_iterator_next(struct dpu_set_rank_iterator_t *iterator);
struct dpu_set_dpu_iterator_t dpu_set_dpu_iterator_from(struct dpu_set_t *set);
void dpu_set_dpu_iterator_next(struct dpu_set_dpu_iterator_t *iterator);

/* DPU_FOREACH(set, dpu) and DPU_FOREACH(set, dpu, index); the same for ranks. */
#define BRINGUP_FOREACH_(kind, set, one)                                                             \
  for (struct dpu_set_##kind##_iterator_t bringup_it_##one = dpu_set_##kind##_iterator_from(&(set)); \
       bringup_it_##one.has_next && ((one) = bringup_it_##one.next, true);                           \
       dpu_set_##kind##_iterator_next(&bringup_it_##one))
#define BRINGUP_FOREACH_I(kind, set, one, index)                                                             \
  for (struct dpu_set_##kind##_iterator_t bringup_it_##one = dpu_set_##kind##_iterator_from(&(set));         \
       bringup_it_##one.has_next && ((one) = bringup_it_##one.next, (index) = bringup_it_##one.count, true); \
       dpu_set_##kind##_iterator_next(&bringup_it_##one))
#define BRINGUP_PICK(a, b, c, chosen, ...) chosen
#define DPU_FOREACH_2(set, one) BRINGUP_FOREACH_(dpu, set, one)
#define DPU_FOREACH_3(set, one, index) BRINGUP_FOREACH_I(dpu, set, one, index)
#define DPU_RANK_FOREACH_2(set, one) BRINGUP_FOREACH_(rank, set, one)
#define DPU_RANK_FOREACH_3(set, one, index) BRINGUP_FOREACH_I(rank, set, one, index)
#define DPU_FOREACH(...) BRINGUP_PICK(__VA_ARGS__, DPU_FOREACH_3, DPU_FOREACH_2, )(__VA_ARGS__)
#define DPU_RANK_FOREACH(...) BRINGUP_PICK(__VA_ARGS__, DPU_RANK_FOREACH_3, DPU_RANK_FOREACH_2, )(__VA_ARGS__)

/* DPU_INCBIN(name, "file"): `struct dpu_incbin_t name`, a DPU program inside of the host program. */
#define BRINGUP_TEXT_(x) #x
#define BRINGUP_TEXT(x) BRINGUP_TEXT_(x)
#define DPU_INCBIN(name, file)                                                                       \
  __asm__(".pushsection .data\n.balign 16\n"                                                       \
          "bringup_incbin_" BRINGUP_TEXT(name) ": .incbin \"" file "\"\n"                           \
          "bringup_incbin_end_" BRINGUP_TEXT(name) ": .asciz \"" file "\"\n.balign 8\n"            \
          ".globl " BRINGUP_TEXT(name) "\n.type " BRINGUP_TEXT(name) ", @object\n"                 \
          ".size " BRINGUP_TEXT(name) ", 24\n"                                                     \
          BRINGUP_TEXT(name) ": .quad bringup_incbin_" BRINGUP_TEXT(name) ", bringup_incbin_end_"  \
          BRINGUP_TEXT(name) " - bringup_incbin_" BRINGUP_TEXT(name) ", bringup_incbin_end_"       \
          BRINGUP_TEXT(name) "\n.popsection\n"); \
  extern struct dpu_incbin_t name;

#ifdef __cplusplus
}
#endif

#endif
