/* The types of the host interface. */
#ifndef BRINGUP_UPMEM_DPU_TYPES_H
#define BRINGUP_UPMEM_DPU_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint32_t dpu_id_t;
typedef uint16_t dpu_rank_id_t;
typedef uint8_t dpu_slice_id_t;
typedef uint8_t dpu_member_id_t;
typedef uint32_t mram_addr_t;
typedef uint32_t mram_size_t;
typedef uint32_t wram_addr_t;
typedef uint32_t wram_size_t;
typedef uint32_t dpu_mem_max_addr_t;
typedef uint32_t dpu_mem_max_size_t;

#define DPU_MRAM_HEAP_POINTER_NAME "__sys_used_mram_end"

struct dpu_t;
struct dpu_rank_t;
struct dpu_program_t;

typedef enum dpu_set_kind_t { DPU_SET_RANKS, DPU_SET_DPU } dpu_set_kind_t;

/* A set of ranks, or one DPU; passed by value, 24 bytes. */
struct dpu_set_t {
  dpu_set_kind_t kind;
  union {
    struct {
      uint32_t nr_ranks;
      struct dpu_rank_t **ranks;
    } list;
    struct dpu_t *dpu;
  };
};

struct dpu_symbol_t {
  uint32_t address;
  uint32_t size;
};

struct dpu_incbin_t {
  uint8_t *buffer;
  size_t size;
  const char *path;
};

typedef enum dpu_launch_policy_t { DPU_ASYNCHRONOUS, DPU_SYNCHRONOUS } dpu_launch_policy_t;
typedef enum dpu_xfer_t { DPU_XFER_TO_DPU, DPU_XFER_FROM_DPU } dpu_xfer_t;

typedef enum dpu_xfer_flags_t {
  DPU_XFER_DEFAULT = 0,
  DPU_XFER_NO_RESET = 1 << 0,
  DPU_XFER_ASYNC = 1 << 1,
  DPU_XFER_PARALLEL = 1 << 2,
} dpu_xfer_flags_t;

typedef enum dpu_sg_xfer_flags_t {
  DPU_SG_XFER_DEFAULT = 0,
  DPU_SG_XFER_ASYNC = 1 << 1,
  DPU_SG_XFER_DISABLE_LENGTH_CHECK = 1 << 2,
} dpu_sg_xfer_flags_t;

typedef enum dpu_callback_flags_t {
  DPU_CALLBACK_DEFAULT = 0,
  DPU_CALLBACK_ASYNC = 1 << 0,
  DPU_CALLBACK_NONBLOCKING = 1 << 1,
  DPU_CALLBACK_SINGLE_CALL = 1 << 2,
  DPU_CALLBACK_PARALLEL = 1 << 3,
} dpu_callback_flags_t;

/* One piece of what a DPU gets or gives in a scatter-gather transfer. */
struct sg_block_info {
  uint8_t *addr;
  uint32_t length;
};
/* Fills in piece `block` of DPU `dpu`; false when there is no such piece. */
typedef bool (*get_block_func_t)(struct sg_block_info *out, uint32_t dpu, uint32_t block, void *args);
typedef struct get_block_t {
  get_block_func_t f;
  void *args;
  size_t args_size;
} get_block_t;

#endif
