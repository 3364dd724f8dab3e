/* The driver contract as a C ABI: one struct of function pointers that brings a chip up in PyTorch.
 *
 * A shared library exports `bringup_driver_create`; a Python driver is adapted to the same struct by
 * bringup/driver/abi.py, so the core sees one thing. Rules that hold for every function:
 *   - it returns a bringup_status; after a failure the core asks `last_error` on the same thread for the reason;
 *   - it never throws, aborts or exits the process;
 *   - it may be called from any thread, also at the same time; the core holds no lock while it calls;
 *   - an address is an opaque integer with arithmetic: base + offset may be passed wherever base may;
 *   - a pointer that is NULL, or that lies beyond `struct_size`, means "not offered": the core uses its default;
 *   - who hands a struct over writes its size into `struct_size`, and the other side touches nothing beyond it.
 */
#ifndef BRINGUP_DRIVER_H
#define BRINGUP_DRIVER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BRINGUP_ABI_VERSION 2u

#if defined(__GNUC__)
#define BRINGUP_EXPORT __attribute__((visibility("default"))) /* also under -fvisibility=hidden */
#else
#define BRINGUP_EXPORT
#endif

typedef enum bringup_status {
  BRINGUP_OK = 0,
  BRINGUP_ERROR = 1,         /* anything else: becomes RuntimeError */
  BRINGUP_OUT_OF_MEMORY = 2, /* the allocator frees its cache and tries again; then torch.OutOfMemoryError */
  BRINGUP_INVALID = 3,       /* an argument the driver cannot accept: ValueError */
  BRINGUP_UNSUPPORTED = 4,   /* NotImplementedError */
  BRINGUP_ABSENT = 5,        /* the hardware is not there: RuntimeError that says what was looked for */
  BRINGUP_INDEX_ERROR = 6,   /* a kernel met an index out of range: IndexError; the device goes on */
  BRINGUP_DEVICE_LOST = 7    /* the device is gone for the rest of the process: torch.AcceleratorError from now on */
} bringup_status;

typedef enum bringup_copy_kind {
  BRINGUP_HOST_TO_DEVICE = 0, /* src is a host pointer */
  BRINGUP_DEVICE_TO_HOST = 1, /* dst is a host pointer */
  BRINGUP_DEVICE_TO_DEVICE = 2
} bringup_copy_kind;

/* How the bytes of one storage lie over the memory partitions of a device (DTensor's words). */
typedef enum bringup_placement_kind {
  BRINGUP_SINGLE = 0,    /* all bytes in partition 0: the only kind a flat device ever sees */
  BRINGUP_REPLICATE = 1, /* the same bytes in every partition */
  BRINGUP_SHARD = 2,     /* blocks of `block` bytes dealt to the partitions in turn */
  BRINGUP_PARTIAL = 3    /* every partition holds a summand (float32); reading gives the sum */
} bringup_placement_kind;

typedef struct bringup_placement {
  uint32_t kind; /* bringup_placement_kind */
  uint32_t reserved;
  uint64_t block;  /* SHARD: bytes of one block, a multiple of 8 */
  uint64_t offset; /* logical byte offset inside the storage whose base address is passed beside this */
} bringup_placement;

/* Bit numbers of bringup_device_spec.dtypes; a mask of 0 means "every dtype". */
typedef enum bringup_dtype {
  BRINGUP_BOOL = 0,
  BRINGUP_UINT8 = 1,
  BRINGUP_INT8 = 2,
  BRINGUP_INT16 = 3,
  BRINGUP_INT32 = 4,
  BRINGUP_INT64 = 5,
  BRINGUP_FLOAT16 = 6,
  BRINGUP_BFLOAT16 = 7,
  BRINGUP_FLOAT32 = 8,
  BRINGUP_FLOAT64 = 9,
  BRINGUP_COMPLEX32 = 10,
  BRINGUP_COMPLEX64 = 11,
  BRINGUP_COMPLEX128 = 12,
  BRINGUP_UINT16 = 13,
  BRINGUP_UINT32 = 14,
  BRINGUP_UINT64 = 15,
  BRINGUP_FLOAT8 = 16,   /* all float8 formats */
  BRINGUP_QUANTIZED = 17 /* qint8, quint8, qint32 … */
} bringup_dtype;

/* Bits that host_alloc and host_register get. */
typedef enum bringup_host_flags {
  BRINGUP_HOST_PORTABLE = 1,      /* for every device of the driver, not only the one that is named */
  BRINGUP_HOST_MAPPED = 2,        /* kernels reach it at its host pointer */
  BRINGUP_HOST_WRITE_COMBINED = 4 /* quick to write in order and slow to read, for the CPU */
} bringup_host_flags;

/* Bits that event_record gets; 0: an event to query and to wait for. */
typedef enum bringup_event_flags {
  BRINGUP_EVENT_TIMING = 1,      /* event_elapsed will be asked about it */
  BRINGUP_EVENT_INTERPROCESS = 2 /* event_export will be */
} bringup_event_flags;

typedef struct bringup_device_spec {
  uint32_t struct_size;  /* of the core: a driver that knows less, or more, fills in what both know */
  uint32_t host_flags;   /* the bringup_host_flags, beside PORTABLE, that host_alloc and host_register can honour */
  char name[128];        /* what get_device_name() prints */
  uint64_t memory_bytes; /* per partition */
  uint64_t alignment;    /* of addresses from alloc; 0 = 64 */
  uint64_t dtypes;       /* mask of 1 << bringup_dtype; 0 = all */
  int64_t host_offset;   /* host_visible: the host reads byte a at address a + host_offset */
  uint32_t host_visible; /* 1: the CPU can load and store device memory (zero-copy fallback) */
  uint32_t host_library; /* 1: run ATen's CPU kernels on device memory as this chip's own library */
  uint32_t partitions;   /* 0 or 1: flat memory */
  uint32_t peer_copy;    /* 1: copy_peer works between all devices of this driver */
  bringup_placement default_placement; /* of new storages, where partitions > 1; SHARD with a block of 0: in one piece
                                        * per partition, and small ones as REPLICATE */
  uint32_t capability_major;
  uint32_t capability_minor;
  double peak_flops;     /* float32, per second; 0 = unknown */
  double peak_bandwidth; /* bytes per second; 0 = unknown */
} bringup_device_spec;

/* What a kernel of the C target is: one call runs the work units begin … end-1, several calls may run at once. The
 * first failed index check of a call writes report[0] = 1 + its number, report[1] = the index, report[2] = the extent;
 * the three start at 0. */
typedef void (*bringup_kernel)(const uint64_t *args, int64_t begin, int64_t end, int64_t *report);

/* One kernel launch. Every argument is 8 bytes: an address, an integer or the bits of a number. Addresses come first.
 */
typedef struct bringup_launch {
  uint32_t struct_size;
  uint32_t arg_count;
  const uint64_t *args;   /* the driver copies what it needs later */
  uint32_t address_count; /* args[0] … args[address_count-1] are device addresses, or 0 for an empty buffer */
  uint32_t block;         /* threads of one unit, as the kernel's source asks for; 0: its language has no such thing */
  uint64_t grid;          /* independent units of work: the driver runs 0 … grid-1, in any order and split */
  uint64_t local_bytes;   /* memory that the threads of a unit share, as the source asks for */
  uint64_t stream;
  double flops; /* cost of the whole launch, for the clock and for scheduling */
  double bytes;
  const bringup_placement *placements; /* NULL: every address says where its bytes are */
  uint32_t *finished;   /* may be NULL; set to 1 where nothing of the launch is left to run when the call returns */
  const char *name;     /* what the kernel is called, for traces and messages; lives as long as the process */
  uint64_t correlation; /* another number for each launch of the process, never 0: by which a trace names it */
  /* On partitioned devices the kernel runs in the first partition_count partitions, on the bytes there: partition p has
   * the arguments partition_args[p * arg_count …], whose addresses are its own, and runs the units 0 …
   * partition_grid[p]-1. 0: it runs once, on partition 0, with args and grid. */
  uint64_t partition_count;
  const uint64_t *partition_args;
  const uint64_t *partition_grid;
} bringup_launch;

/* ---- library ops: a tuned function of the chip, which the core calls as it launches a kernel ---- */

/* A tensor of a call, as far as every call of the same signature shares it. */
typedef struct bringup_tensor {
  uint32_t dtype; /* bringup_dtype */
  uint32_t ndim;
  const int64_t *sizes;
  const int64_t *strides; /* in elements */
  uint32_t placement;     /* bringup_placement_kind */
  uint32_t reserved;
} bringup_tensor;

typedef enum bringup_value_kind {
  BRINGUP_NONE = 0,     /* not given */
  BRINGUP_TENSOR = 1,   /* integers[0] is its number among `tensors`; a list of tensors has several */
  BRINGUP_NUMBER = 2,   /* new in each call: integers[0] is its number among the numbers of the launch */
  BRINGUP_INTEGERS = 3, /* an integer, a truth value or a list of them, the same in every call */
  BRINGUP_REAL = 4,
  BRINGUP_TEXT = 5
} bringup_value_kind;

/* An argument of the op's schema. */
typedef struct bringup_value {
  const char *name;
  uint32_t kind;  /* bringup_value_kind */
  uint32_t count; /* of integers */
  const int64_t *integers;
  double real;
  const char *text;
} bringup_value;

/* A call of an op, by its signature. */
typedef struct bringup_call {
  uint32_t struct_size;
  uint32_t tensor_count; /* arguments, then outputs */
  uint32_t output_count; /* of those, the last ones */
  uint32_t value_count;
  const char *op; /* "aten::mm" */
  const bringup_tensor *tensors;
  const bringup_value *values;
} bringup_call;

/* Queues the op on launch->stream. The arguments are the addresses of the call's tensors, then, where the op has asked
 * for one, the address of its workspace (address_count counts them all), then its numbers as the bits of doubles. What
 * holds for `launch` holds here: arguments are the caller's, failures are a bringup_status, `finished` may be set. */
typedef int32_t (*bringup_library_function)(void *context, int32_t device, const bringup_launch *launch);

typedef struct bringup_library_op {
  uint32_t struct_size;
  uint32_t elementwise; /* 1: an element is read only where it is written, so an output may be an input */
  bringup_library_function function;
  void *context;            /* handed back to the function; both live as long as the process */
  uint64_t workspace_bytes; /* device memory of the call's own */
  double flops;
  double bytes;
} bringup_library_op;

/* ---- traces: what ran when, on the device's own clock ---- */

typedef enum bringup_trace_kind {
  BRINGUP_TRACE_KERNEL = 0,
  BRINGUP_TRACE_COPY = 1,
  BRINGUP_TRACE_WAIT = 2, /* a stream waited for an event */
  BRINGUP_TRACE_HOST = 3, /* a host function */
  BRINGUP_TRACE_OTHER = 4
} bringup_trace_kind;

typedef struct bringup_trace_record {
  uint32_t kind;      /* bringup_trace_kind */
  uint32_t copy_kind; /* bringup_copy_kind, of a copy */
  uint64_t start_ns;  /* of the device's clock */
  uint64_t end_ns;
  uint64_t stream;
  uint64_t correlation; /* of the launch; 0: of work that carries none */
  uint64_t bytes;       /* that were copied, or that the launch said it moves */
  const char *name;     /* lives as long as the process; may be NULL */
} bringup_trace_record;

/* One moment on two clocks, by which a profiler places the records among its own. */
typedef struct bringup_clock_pair {
  uint64_t device_ns;
  uint64_t host_ns; /* Unix time: CLOCK_REALTIME */
} bringup_clock_pair;

/* What a collective makes of the values of all ranks. */
typedef enum bringup_reduction {
  BRINGUP_SUM = 0,
  BRINGUP_AVG = 1, /* the sum over the number of ranks */
  BRINGUP_PRODUCT = 2,
  BRINGUP_MIN = 3,
  BRINGUP_MAX = 4,
  BRINGUP_BAND = 5,
  BRINGUP_BOR = 6,
  BRINGUP_BXOR = 7
} bringup_reduction;

typedef struct bringup_driver {
  uint32_t abi_version; /* BRINGUP_ABI_VERSION of the header the driver was built with */
  uint32_t struct_size; /* sizeof(bringup_driver) there: later fields count as NULL */
  void *self;           /* passed back as the first argument of every function */

  /* ---- required ---- */
  /* Cheap, opens nothing, never fails, the same answer for the whole process. */
  int32_t (*device_count)(void *self);
  int32_t (*open)(void *self, int32_t device, bringup_device_spec *spec);
  /* nbytes > 0. */
  int32_t (*alloc)(void *self, int32_t device, uint64_t nbytes, uint64_t *address);
  /* No queued work uses the memory any more: the core has waited for every stream that might. */
  int32_t (*free)(void *self, int32_t device, uint64_t address);
  /* Ordered on `stream`; may return before the bytes have moved. placement is NULL on flat devices; otherwise the
   * device address is the base of a storage, and inside a device both bases share the placement and its offset. */
  int32_t (*copy)(void *self, int32_t device, uint64_t dst, uint64_t src, uint64_t nbytes, int32_t kind,
                  uint64_t stream, const bringup_placement *placement);

  /* ---- kernels ---- */
  /* C or DPU C or CUDA C in, a binary out: the core calls `*binary_free(*binary)` afterwards. */
  int32_t (*target)(void *self, char *description, uint64_t size);
  int32_t (*compile)(void *self, const char *source, void **binary, uint64_t *nbytes, void (**binary_free)(void *));
  int32_t (*load)(void *self, int32_t device, const void *binary, uint64_t nbytes, const char *entry, uint64_t *kernel);
  /* A kernel that reports an index out of range fails with BRINGUP_INDEX_ERROR: this call, where it ran at once; else
   * the next launch, copy or host wait for an event of that stream, once, and the stream goes on. The core keeps what
   * it is told in a wait of its own (for the allocator, say), until the user waits or uses the stream again. */
  int32_t (*launch)(void *self, int32_t device, uint64_t kernel, const bringup_launch *launch);

  /* The chip's own function for calls of this signature; BRINGUP_UNSUPPORTED: none, the op runs as a kernel. Asked once
   * for each signature of the ops that `library_ops` of the class over the library lists. */
  int32_t (*library_op)(void *self, int32_t device, const bringup_call *call, bringup_library_op *op);

  /* ---- asynchrony: without these seven every call is synchronous ---- */
  int32_t (*stream_create)(void *self, int32_t device, int32_t priority,
                           uint64_t *stream); /* 0 is the default stream */
  int32_t (*stream_destroy)(void *self, int32_t device, uint64_t stream);
  /* A new one-shot event, not 0, that completes when all work queued so far on `stream` has; it may outlive the stream.
   */
  int32_t (*event_record)(void *self, int32_t device, uint64_t stream, uint32_t flags, uint64_t *event);
  int32_t (*event_query)(void *self, int32_t device, uint64_t event, int32_t *done);
  /* wait_stream = -1: the calling thread blocks, and if it is told of failed work the event has completed all the same;
   * else that stream of wait_device waits. */
  int32_t (*event_wait)(void *self, int32_t device, uint64_t event, int32_t wait_device, int64_t wait_stream);
  int32_t (*event_elapsed)(void *self, int32_t device, uint64_t start, uint64_t end, double *milliseconds);
  /* May come while a stream still waits for the event, or before it has completed: those waits hold. No other call
   * with this event is under way, and none follows. */
  int32_t (*event_destroy)(void *self, int32_t device, uint64_t event);

  /* ---- events of several processes ---- */
  /* A text by which another process of this machine can wait for an event recorded with BRINGUP_EVENT_INTERPROCESS. */
  int32_t (*event_export)(void *self, int32_t device, uint64_t event, char *handle, uint64_t size);
  /* An event of this process that completes with the other one; event_destroy ends it. It has no time. */
  int32_t (*event_import)(void *self, int32_t device, const char *handle, uint64_t *event);

  /* ---- graphs: without these four the core launches the steps of a graph one by one ---- */
  /* What is queued on `stream` from here on is kept and not run. Nothing waits for the stream meanwhile. */
  int32_t (*graph_begin)(void *self, int32_t device, uint64_t stream);
  /* What was kept, as a graph; the stream runs work again, also after a failure. */
  int32_t (*graph_end)(void *self, int32_t device, uint64_t stream, uint64_t *graph);
  /* Runs a graph as one piece of work of any stream; the same one may be queued again while it runs. */
  int32_t (*graph_launch)(void *self, int32_t device, uint64_t graph, uint64_t stream, uint64_t correlation);
  int32_t (*graph_destroy)(void *self, int32_t device, uint64_t graph); /* no queued work uses it any more */

  /* ---- time ---- */
  int32_t (*clock)(void *self, int32_t device, uint64_t *nanoseconds); /* device time */
  /* Work that ran on the host on the device's behalf (host_library): advance the device's clock. */
  int32_t (*charge)(void *self, int32_t device, uint64_t stream, int32_t dtype, double flops, double bytes);

  /* Records from here on what the device runs, up to `capacity` records that were not read yet; more are dropped. */
  int32_t (*trace_start)(void *self, int32_t device, uint64_t capacity, bringup_clock_pair *now);
  int32_t (*trace_stop)(void *self, int32_t device, bringup_clock_pair *now); /* what was recorded can still be read */
  /* Takes up to `size` records of finished work, in any order; *count 0: there are no more. *dropped counts those for
   * which there was no room since the start. */
  int32_t (*trace_read)(void *self, int32_t device, bringup_trace_record *records, uint64_t size, uint64_t *count,
                        uint64_t *dropped);

  /* ---- memory beyond the basics ---- */
  /* Bytes of the device that nothing occupies, other processes included, and all of them. */
  int32_t (*memory_info)(void *self, int32_t device, uint64_t *free, uint64_t *total);
  /* Where peer_copy is set: whether copy_peer works from `peer` to `device`. Without it, it does between all. */
  int32_t (*can_access_peer)(void *self, int32_t device, int32_t peer, int32_t *can);
  /* `stream` belongs to dst_device. */
  int32_t (*copy_peer)(void *self, int32_t dst_device, uint64_t dst, int32_t src_device, uint64_t src, uint64_t nbytes,
                       uint64_t stream);
  /* Rewrites a storage of `nbytes` logical bytes from one placement into another. */
  int32_t (*relayout)(void *self, int32_t device, uint64_t dst, const bringup_placement *dst_placement, uint64_t src,
                      const bringup_placement *src_placement, uint64_t nbytes, uint64_t stream);
  /* Pinned host memory; may come before the device is opened. The core asks for PORTABLE; a flag that the device's spec
   * does not list is refused. */
  int32_t (*host_alloc)(void *self, uint64_t nbytes, int32_t device, uint32_t flags, void **pointer);
  int32_t (*host_free)(void *self, void *pointer);
  /* Pins host memory that is there already, for copies in the background; until host_unregister of the same pointer. */
  int32_t (*host_register)(void *self, void *pointer, uint64_t nbytes, int32_t device, uint32_t flags);
  int32_t (*host_unregister)(void *self, void *pointer); /* no queued work uses it any more */
  /* A text by which another process of this machine can map the memory at `address`; import gives the same byte there.
   */
  int32_t (*ipc_export)(void *self, int32_t device, uint64_t address, char *handle, uint64_t size);
  int32_t (*ipc_import)(void *self, int32_t device, const char *handle, uint64_t *address);
  int32_t (*ipc_close)(void *self, int32_t device, uint64_t address); /* no queued work uses it any more */

  /* ---- work on the host, in stream order ---- */
  int32_t (*host_function)(void *self, int32_t device, uint64_t stream, void (*function)(void *), void *argument);

  /* ---- housekeeping ---- */
  int32_t (*close)(void *self, int32_t device);
  /* Writes the reason of this thread's last failure, NUL-terminated. */
  void (*last_error)(void *self, char *message, uint64_t size);

  /* ---- collectives: of processes, for drivers with streams and host functions; what is NULL goes through the host
   * ---- */
  /* A text by which the ranks of a new group find each other; the first rank asks for it. */
  int32_t (*comm_id)(void *self, int32_t device, char *id, uint64_t size);
  /* Joins a group; returns when every rank has. A collective that other ranks do not join within `timeout_ms` fails, as
   * queued work does. Every rank queues the same collectives of a group in the same order, one after the other. */
  int32_t (*comm_create)(void *self, int32_t device, const char *id, int32_t rank, int32_t size, uint64_t timeout_ms,
                         uint64_t *comm);
  /* Leaves the group; collectives that are on their way fail. */
  int32_t (*comm_destroy)(void *self, int32_t device, uint64_t comm);
  /* Each queues one collective of flat memory, at least a byte, on `stream`; dst may be src. BRINGUP_UNSUPPORTED: it
   * goes through the host. That must follow from dtype and reduction alone, since all ranks must go the same way. */
  int32_t (*all_reduce)(void *self, int32_t device, uint64_t comm, uint64_t dst, uint64_t src, uint64_t count,
                        int32_t dtype, int32_t reduction, uint64_t stream);
  int32_t (*broadcast)(void *self, int32_t device, uint64_t comm, uint64_t address, uint64_t nbytes, int32_t root,
                       uint64_t stream);
  /* nbytes of each rank, one after the other in dst; src may be this rank's place there. */
  int32_t (*all_gather)(void *self, int32_t device, uint64_t comm, uint64_t dst, uint64_t src, uint64_t nbytes,
                        uint64_t stream);
  /* count elements for each rank, one after the other in src; dst may be this rank's place there. */
  int32_t (*reduce_scatter)(void *self, int32_t device, uint64_t comm, uint64_t dst, uint64_t src, uint64_t count,
                            int32_t dtype, int32_t reduction, uint64_t stream);
} bringup_driver;

/* What a shared library exports. `options` is driver-specific text ("devices=4,memory=2G"). The core has filled in
 * nothing: the driver sets every field of *driver that it offers. On failure it writes the reason into `error`. */
typedef int32_t (*bringup_driver_create_fn)(uint32_t abi_version, const char *options, bringup_driver *driver,
                                            char *error, uint64_t error_size);
BRINGUP_EXPORT int32_t bringup_driver_create(uint32_t abi_version, const char *options, bringup_driver *driver,
                                             char *error, uint64_t error_size);

#ifdef __cplusplus
}
#endif
#endif
