/* The simulated accelerator, in one picture: what a sim, a device, a stream, an event and a piece of work are.
 *
 * A sim (one bringup_driver_create) owns devices. A device owns one memfd mapped into one reserved address range, a
 * table of streams and a table of events. A stream is a FIFO of work with a worker thread that starts with the first
 * queued item. No torch, no C++: this builds as a stand-alone sanitizer binary (tests/sanitize/sim_stress.c).
 *
 * Address map of a device with P partitions (P = 1 on a flat device):
 *
 *   base ─┬─ partition 0: heap (partition_bytes) │ window for imported memory (window_bytes)
 *         ├─ partition 1: the same, `stride` bytes further; an address names the same offset in every partition
 *         └─ …
 *   base + host_offset: the runtime's read-write side. host_offset is 0, except with trap=1: then the side handed out
 * is PROT_NONE and a host access to it is caught (trap.c).
 *
 * Placement rules (placement.c). The device address passed beside a placement is the *base* of the storage; logical
 * byte x = placement->offset + i lies SINGLE     in partition 0 at base + x; REPLICATE  in every partition at base + x
 * (read from partition 0); SHARD      in partition (x / block) % P at base + x / (block * P) * block + x % block;
 *   PARTIAL    as a float32 summand in every partition at base + x; a write puts the value into partition 0 and zeros
 *              elsewhere, a read adds the partitions up in order.
 * Device to device with a placement: dst and src are both bases, and kind, block and offset hold for both.
 *
 * Lock order: stream.lock → device.event_lock. heap_lock and stream_lock are leaves or outermost, never nested in
 * these.
 */
#ifndef BRINGUP_SIM_H
#define BRINGUP_SIM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "bringup/driver.h"

#define SIM_PAGE 4096u
#define SIM_MAX_DEVICES 64
#define SIM_MAX_PARTITIONS 1024
#define SIM_MAX_STREAMS 1024
#define SIM_DTYPES 18
#define SIM_EVENT_CHUNK 1024 /* events come in chunks, so that their addresses never change */
#define SIM_EVENT_CHUNKS 4096
#define SIM_SHARED_EVENT_BYTES 16384u /* one word for each event that other processes wait for */

/* An idle stream runs work that should take less than this on the calling thread: a round trip through a worker costs
 * 25–35 µs, so for shorter work the queue would cost more than the work. */
#define SIM_INLINE_NS 20000.0
/* Host time of copying a byte, on the safe side (5 GB/s: cold pages included). */
#define SIM_COPY_NS_PER_BYTE 0.2
#define SIM_NEVER_INLINE 1e18
/* A kernel or a copy on an idle stream runs on the caller up to this length: the trip through the worker made an add of
 * 1M floats 1.48 times as slow as the CPU's on a busy machine, and 1.00 times without it; of a millisecond it is 3 %.
 * Copies of 5 MB are that long: whoever copies pageable memory waits for them anyway. */
#define SIM_WORK_INLINE_NS 1e6
/* Host time of a kernel: an ordinary core does 20 Gflop/s and moves 20 GB/s. Rather too fast than too slow: a kernel of
 * 40 µs that runs inline costs its caller no more than a trip through the worker would. */
#define SIM_KERNEL_NS_PER_FLOP 0.05
#define SIM_KERNEL_NS_PER_BYTE 0.05
/* Work from here on is split over the device's threads: waking one takes 5–50 µs. */
#define SIM_SPLIT_NS 50000.0
#define SIM_MAX_THREADS 256
#define SIM_MAX_ARGS 4096
#define SIM_KERNEL_CHUNK 256 /* kernels too come in chunks */
#define SIM_KERNEL_CHUNKS 4096
/* Pages have no other way of being written, so memory that is to be write-combined is as good as any. */
#define SIM_HOST_FLAGS BRINGUP_HOST_WRITE_COMBINED

typedef enum sim_fault { SIM_FAULT_ALLOC, SIM_FAULT_COPY, SIM_FAULT_LAUNCH, SIM_FAULT_EVENT, SIM_FAULTS } sim_fault;

/* The described chip; enabled = 0 means that device time is wall time. */
typedef struct sim_roofline {
  int enabled;
  double peak_flops[SIM_DTYPES]; /* per second; 0: that dtype runs at float32's rate */
  double bandwidth;              /* device memory, bytes per second */
  double launch_ns;              /* fixed cost of every launch */
  double link_bandwidth;         /* host ↔ device and device ↔ device, bytes per second */
  double link_latency_ns;
} sim_roofline;

typedef struct sim_options {
  int32_t devices;
  uint64_t memory; /* per device; each partition has its share */
  int library;     /* mode=library */
  int trap;
  uint32_t threads; /* that run the units of one large kernel */
  uint32_t partitions;
  bringup_placement placement; /* of new storages */
  double fail[SIM_FAULTS];
  uint64_t seed;
  int jitter; /* jitter.c: work is queued and delayed at random */
  uint64_t jitter_seed;
  char name[96];
  sim_roofline roofline;
} sim_options;

/* A list of used and free pieces of an address range, sorted by address. */
typedef struct sim_block {
  uint64_t start, size;
  int used;
  uint32_t imports; /* imported memory: how often, and of what */
  uint64_t file_offset;
  char token[33];
  struct sim_block *previous, *next;
} sim_block;

typedef struct sim_ranges {
  sim_block *first;
  uint64_t used_bytes;
} sim_ranges;

typedef struct sim sim;
typedef struct sim_device sim_device;
typedef struct sim_stream sim_stream;

/* A slot is free when unreferenced: the user's handle, the queued record and every waiter hold one reference. */
typedef struct sim_event {
  _Atomic uint32_t done; /* also the futex the waiters sleep on */
  _Atomic uint32_t waiters;
  uint32_t generation;
  uint32_t references;
  uint32_t slot;
  uint32_t next_free;
  double time_ns;     /* device time of completion; valid once done */
  sim_stream *stream; /* where it was recorded: a host wait reports that stream's failure */
  uint64_t stream_handle;
  _Atomic uint32_t *shared; /* event_ipc.c: its word, where another process is concerned */
  uint32_t shared_number;
  int32_t exporter; /* of an imported one: who completes it */
  void *mapping;    /* and where its word is mapped */
} sim_event;

/* A function of a loaded binary. Never freed, as a failure names it; its code is gone when the device is closed. */
typedef struct sim_kernel {
  bringup_kernel function;
  void *library;
  uint32_t arg_count; /* what the binary says it reads; SIM_ANY_COUNT where it does not say */
  char name[108];
} sim_kernel;
#define SIM_ANY_COUNT UINT32_MAX

/* A failed index check: which kernel, the index, the extent. */
typedef struct sim_report {
  const sim_kernel *kernel; /* NULL: none failed */
  int64_t index, extent;
} sim_report;

/* The threads of a device that help a stream's worker with one large kernel; started with the first one. */
typedef struct sim_workers {
  pthread_mutex_t lock;
  pthread_cond_t wake, done;
  struct sim_job *jobs; /* kernels that still have units to take */
  uint32_t count;
  int stopping;
  pthread_t threads[SIM_MAX_THREADS];
} sim_workers;

/* What a trace says of a piece of work, and which of its parts is filled in. */
typedef enum sim_work_kind {
  SIM_WORK_EVENT, /* no work: it is in no trace */
  SIM_WORK_KERNEL,
  SIM_WORK_COPY,
  SIM_WORK_PLACED,
  SIM_WORK_WAIT,
  SIM_WORK_HOST,
  SIM_WORK_OTHER
} sim_work_kind;

/* One item of a stream. */
typedef struct sim_work {
  sim_work_kind kind;
  void (*run)(sim_stream *stream, struct sim_work *work);
  int (*keep)(struct sim_work *work); /* called when it is queued: copies what belongs to the caller; 0: no memory */
  int ran_inline;                     /* set by sim_submit */
  double host_ns;                     /* how long it should take here: decides inline or queued */
  double inline_ns;                   /* up to which length it may run inline; 0: SIM_INLINE_NS */
  double device_ns;                   /* how long the described chip would take: moves the stream's cursor */
  double floor_ns; /* device time the host had seen when it submitted this: the work cannot start earlier */
  union {
    struct {
      char *dst;
      const char *src;
      uint64_t nbytes;
      int32_t kind;
    } copy;
    struct {
      sim_device *device;
      char *dst, *src; /* runtime-side base of a storage, or host memory */
      uint64_t nbytes;
      int32_t kind;
      bringup_placement placement;
    } placed;
    struct {
      sim_device *device;
      char *dst, *src, *buffer;
      uint64_t nbytes;
      bringup_placement dst_placement, src_placement;
    } relayout;
    struct {
      void (*function)(void *);
      void *argument;
    } host;
    struct {
      sim_device *device;
      sim_event *event;
    } event;
    struct {
      const sim_kernel *kernel;
      const uint64_t *args; /* host-side addresses; the caller's until keep has run */
      uint32_t arg_count, address_count;
      int64_t grid;
      uint64_t partitions;            /* 0: partition 0 alone, with args and grid */
      const uint64_t *partition_grid; /* units of each; args are then those of all, one after the other */
      uint64_t correlation;
      double bytes;
      sim_report report; /* of work that ran inline */
    } launch;
  } as;
} sim_work;

struct sim_stream {
  sim_device *device;
  _Atomic uint64_t handle; /* SIM_DEAD when destroyed: a stale handle never matches */
  uint32_t slot;
  uint32_t generation;
  pthread_mutex_t lock; /* everything below; held while work runs inline */
  pthread_cond_t wake;
  sim_work *ring;
  uint32_t head, count, capacity;
  uint32_t pending; /* queued + running on the worker */
  uint64_t jitter_draws;
  int has_worker, stopping, finished;
  pthread_t worker;
  _Atomic double cursor_ns; /* device time at which the last finished work ended */
  _Atomic int failed;       /* report_state: written by the worker, taken by the next caller */
  sim_report report;
};
#define SIM_DEAD UINT64_MAX

/* trace.c */
typedef struct sim_trace {
  _Atomic int running;
  pthread_mutex_t lock; /* of what follows; a leaf */
  bringup_trace_record *records;
  uint64_t capacity, count, dropped;
} sim_trace;

typedef enum sim_state { SIM_CLOSED, SIM_OPEN, SIM_CLOSING } sim_state;

struct sim_device {
  sim *owner;
  int32_t index;
  _Atomic int state;
  uint32_t fork_generation;

  int fd;
  uint64_t base; /* address side; 0 until the first open */
  uint64_t partition_bytes, window_bytes, stride, side_bytes;
  int64_t host_offset;
  char token[33];
  pthread_mutex_t heap_lock;
  sim_ranges heap, window;

  pthread_mutex_t stream_lock;
  _Atomic(sim_stream *) streams[SIM_MAX_STREAMS];
  double retired_ns; /* the latest cursor of streams that are gone */

  pthread_mutex_t event_lock;
  sim_event *event_chunks[SIM_EVENT_CHUNKS];
  uint32_t event_count, event_free; /* slots made so far; first free slot + 1 */
  _Atomic uint32_t *event_words;    /* of events that other processes may wait for */
  uint32_t event_word_next;
  uint8_t event_word_used[SIM_SHARED_EVENT_BYTES / sizeof(uint32_t)];

  pthread_mutex_t kernel_lock;
  _Atomic(sim_kernel *) kernel_chunks[SIM_KERNEL_CHUNKS];
  _Atomic uint32_t kernel_first, kernel_count; /* slots below kernel_first were closed; no slot is used twice */
  sim_workers workers;
  sim_trace trace;
};

struct sim {
  sim_options options;
  uint64_t start_ns;            /* wall clock at creation: zero of the default clock */
  _Atomic double host_floor_ns; /* the latest device time the host has waited for */
  _Atomic uint64_t fault_draws[SIM_FAULTS];
  sim_device devices[SIM_MAX_DEVICES];
  sim *next; /* every sim of the process */
};
extern sim *sim_all; /* under sim_process_lock: what the core points to is never freed */

/* fault.c: errors, injected and real */
int32_t sim_fail(int32_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_last_error(void *self, char *message, uint64_t size);
int32_t sim_inject(sim *s, sim_fault fault, int32_t device);
uint64_t sim_draw(uint64_t seed, uint64_t kind, uint64_t number);
extern const char *const sim_fault_names[SIM_FAULTS];

/* options.c */
int32_t sim_parse_options(const char *text, sim_options *options);
extern const char *const sim_dtype_names[SIM_DTYPES];

/* process.c: devices, their state, fork */
extern pthread_mutex_t sim_process_lock; /* open, close and host memory; taken around fork */
void sim_watch_forks(void);
int32_t sim_find(sim *s, int32_t index, sim_device **device);
int sim_release_is_noop(sim *s, int32_t index);
int32_t sim_open(void *self, int32_t index, bringup_device_spec *spec);
int32_t sim_close(void *self, int32_t index);

/* ranges.c */
int sim_ranges_init(sim_ranges *ranges, uint64_t start, uint64_t size);
void sim_ranges_clear(sim_ranges *ranges);
sim_block *sim_ranges_take(sim_ranges *ranges, uint64_t size);
sim_block *sim_ranges_find(const sim_ranges *ranges, uint64_t address);
void sim_ranges_give(sim_ranges *ranges, sim_block *block);
uint64_t sim_ranges_largest(const sim_ranges *ranges);

/* heap.c */
int32_t sim_heap_open(sim_device *d);
void sim_heap_close(sim_device *d);
int32_t sim_check_range(sim_device *d, const char *what, uint64_t address, uint64_t nbytes);
int32_t sim_alloc(void *self, int32_t index, uint64_t nbytes, uint64_t *address);
int32_t sim_memory_info(void *self, int32_t index, uint64_t *free, uint64_t *total);
int32_t sim_free(void *self, int32_t index, uint64_t address);
static inline char *sim_host_side(const sim_device *d, uint64_t address) {
  return (char *)(uintptr_t)(address + (uint64_t)d->host_offset);
}

/* host_memory.c */
int32_t sim_host_alloc(void *self, uint64_t nbytes, int32_t index, uint32_t flags, void **pointer);
int32_t sim_host_free(void *self, void *pointer);
int32_t sim_host_register(void *self, void *pointer, uint64_t nbytes, int32_t index, uint32_t flags);
int32_t sim_host_unregister(void *self, void *pointer);

/* trace.c */
void sim_trace_add(sim_stream *stream, const sim_work *work, double start_ns);
void sim_trace_close(sim_device *d);
int32_t sim_trace_start(void *self, int32_t index, uint64_t capacity, bringup_clock_pair *now);
int32_t sim_trace_stop(void *self, int32_t index, bringup_clock_pair *now);
int32_t sim_trace_read(void *self, int32_t index, bringup_trace_record *records, uint64_t size, uint64_t *count,
                       uint64_t *dropped);

/* stream.c */
int32_t sim_streams_open(sim_device *d);
void sim_streams_close(sim_device *d);
int sim_on_worker_of(const sim_device *d);
int32_t sim_stream_find(sim_device *d, uint64_t handle, sim_stream **stream);
int32_t sim_submit(sim_stream *stream, uint64_t handle, sim_work *work);
int32_t sim_stream_ready(sim_device *d, uint64_t handle, sim_stream **stream);
void sim_stream_fail(sim_stream *stream, const sim_report *report);
int32_t sim_stream_report(sim_stream *stream);
int sim_start_thread(pthread_t *thread, void *(*function)(void *), void *argument, const char *name);
int32_t sim_stream_create(void *self, int32_t index, int32_t priority, uint64_t *handle);
int32_t sim_stream_destroy(void *self, int32_t index, uint64_t handle);
int32_t sim_host_function(void *self, int32_t index, uint64_t handle, void (*function)(void *), void *argument);

/* jitter.c; the exported one is called from tests/order */
int sim_jitter_queues(sim_stream *stream);
uint64_t sim_jitter_ns(sim_stream *stream);
BRINGUP_EXPORT int32_t sim_set_jitter(uint64_t seed);

/* event.c */
int32_t sim_event_record(void *self, int32_t index, uint64_t handle, uint32_t flags, uint64_t *event);
int32_t sim_event_query(void *self, int32_t index, uint64_t event, int32_t *done);
int32_t sim_event_wait(void *self, int32_t index, uint64_t event, int32_t wait_index, int64_t wait_stream);
int32_t sim_event_elapsed(void *self, int32_t index, uint64_t start, uint64_t end, double *milliseconds);
int32_t sim_event_destroy(void *self, int32_t index, uint64_t event);

sim_event *sim_event_take(sim_device *d, uint32_t references, uint64_t *handle);
int32_t sim_event_hold(sim_device *d, uint64_t handle, sim_event **event);
void sim_event_drop(sim_device *d, sim_event *event);

/* event_ipc.c */
int sim_shared_events_open(sim_device *d, uint64_t file_offset);
int sim_event_share(sim_device *d, sim_event *event);
void sim_event_unshare(sim_device *d, sim_event *event);
void sim_event_tell_others(sim_event *event);
int sim_imported_done(sim_event *event);
void sim_imported_wait(sim_event *event);
int32_t sim_event_export(void *self, int32_t index, uint64_t event, char *handle, uint64_t size);
int32_t sim_event_import(void *self, int32_t index, const char *handle, uint64_t *event);

/* clock.c */
uint64_t sim_wall_ns(void);
double sim_stream_now(const sim_stream *stream);
double sim_host_floor(const sim *s);
void sim_raise(_Atomic double *time_ns, double at_least);
double sim_cost_link(const sim *s, double bytes);
double sim_cost_kernel(const sim *s, int32_t dtype, double flops, double bytes);
int32_t sim_clock(void *self, int32_t index, uint64_t *nanoseconds);
int32_t sim_charge(void *self, int32_t index, uint64_t handle, int32_t dtype, double flops, double bytes);

/* copy.c and placement.c */
int32_t sim_copy(void *self, int32_t index, uint64_t dst, uint64_t src, uint64_t nbytes, int32_t kind, uint64_t handle,
                 const bringup_placement *placement);
int32_t sim_copy_peer(void *self, int32_t dst_index, uint64_t dst, int32_t src_index, uint64_t src, uint64_t nbytes,
                      uint64_t handle);
int32_t sim_copy_placed(sim_device *d, uint64_t dst, uint64_t src, uint64_t nbytes, int32_t kind, uint64_t handle,
                        const bringup_placement *placement);
int32_t sim_relayout(void *self, int32_t index, uint64_t dst, const bringup_placement *dst_placement, uint64_t src,
                     const bringup_placement *src_placement, uint64_t nbytes, uint64_t handle);

/* kernel.c: binaries and their functions */
int32_t sim_load(void *self, int32_t index, const void *binary, uint64_t nbytes, const char *entry, uint64_t *kernel);
int32_t sim_kernel_find(sim_device *d, uint64_t handle, const sim_kernel **kernel);
void sim_kernels_close(sim_device *d);

/* launch.c and workers.c */
int32_t sim_launch(void *self, int32_t index, uint64_t kernel, const bringup_launch *launch);
int32_t sim_report_status(const sim_report *report);
void sim_workers_init(sim_workers *workers);
void sim_workers_run(sim_device *d, const sim_kernel *kernel, const uint64_t *args, int64_t grid, double host_ns,
                     sim_report *report);
void sim_workers_stop(sim_workers *workers);

/* trap.c; the exported ones are called from __init__.py */
int32_t sim_trap_watch(uint64_t start, uint64_t end);
BRINGUP_EXPORT void sim_set_trap_callback(void (*callback)(uint64_t address));
BRINGUP_EXPORT void sim_set_trap_interrupt(int (*interrupt)(int signum), int signum);
BRINGUP_EXPORT uint64_t sim_trap_count(void);
BRINGUP_EXPORT uint64_t sim_trap_address(uint64_t number);

/* ipc.c */
void sim_ipc_forget(sim_device *d, const sim_block *block);
int32_t sim_open_shared(const char *what, int pid, int number, const char *token, int *fd, uint64_t *nbytes);
int32_t sim_ipc_export(void *self, int32_t index, uint64_t address, char *handle, uint64_t size);
int32_t sim_ipc_import(void *self, int32_t index, const char *handle, uint64_t *address);
int32_t sim_ipc_close(void *self, int32_t index, uint64_t address);

#endif
