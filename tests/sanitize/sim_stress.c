/* Stress of the sim driver alone, for the sanitizers: threads, streams, events and devices at once, every byte checked.
 *
 * Build and run (from the repository root), with SAN = thread, or address,undefined, or left out:
 *   gcc -std=gnu11 -O1 -g -fsanitize=$SAN -Ibringup/include tests/sanitize/sim_stress.c bringup/drivers/sim/[a-z]*.c
 *       -pthread -o sim_stress && ./sim_stress
 * `./sim_stress --bench` (built with -O2) prints nanoseconds of the calls every eager op makes.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bringup/driver.h"

enum { DEVICES = 3, THREADS = 6, LARGEST = 192 * 1024 };

static int rounds = 120; /* fewer where jitter delays each piece of work */

static bringup_driver drv;

static void die(const char *format, ...) {
  va_list arguments;
  char reason[512] = "";
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  drv.last_error(drv.self, reason, sizeof reason);
  fprintf(stderr, " (last error: %s)\n", reason);
  exit(1);
}

#define OK(call)                                                   \
  do {                                                             \
    if ((call) != BRINGUP_OK) die("line %d: %s", __LINE__, #call); \
  } while (0)
#define REFUSED(call)                                                                \
  do {                                                                               \
    if ((call) != BRINGUP_INVALID) die("line %d: not refused: %s", __LINE__, #call); \
  } while (0)

typedef struct random_state {
  uint64_t x;
} random_state;

static uint64_t below(random_state *r, uint64_t limit) {
  r->x ^= r->x << 13;
  r->x ^= r->x >> 7;
  r->x ^= r->x << 17;
  return r->x % limit;
}

/* ---- one producer stream, one consumer stream on perhaps another device, with an event between ---- */
static void start_driver(const char *options) {
  char error[512] = "";
  bringup_device_spec spec;
  if (bringup_driver_create(BRINGUP_ABI_VERSION, options, &drv, error, sizeof error) != BRINGUP_OK) {
    fprintf(stderr, "%s\n", error);
    exit(1);
  }
  for (int d = 0; d < drv.device_count(drv.self); d++) OK(drv.open(drv.self, d, &spec));
}

static void nap(void *argument) {
  (void)argument;
  usleep(200);
}

static void count_up(void *argument) { ++*(int *)argument; } /* not atomic: the stream's order must protect it */

static void pipeline(random_state *r, unsigned char *host, unsigned char *back) {
  int from = (int)below(r, DEVICES), to = (int)below(r, DEVICES);
  uint64_t n = 1 + below(r, LARGEST), produce, consume, a, b, c, copied, imported, read;
  char handle[256];
  int counter = 0, done = 0;
  double milliseconds;
  OK(drv.stream_create(drv.self, from, 0, &produce));
  OK(drv.stream_create(drv.self, to, -1, &consume));
  OK(drv.alloc(drv.self, from, n, &a));
  OK(drv.alloc(drv.self, from, n, &b));
  OK(drv.alloc(drv.self, to, n, &c));
  for (uint64_t i = 0; i < n; i++) host[i] = (unsigned char)(r->x >> (i % 8 * 8)) ^ (unsigned char)i;
  if (below(r, 2)) OK(drv.host_function(drv.self, from, produce, nap, NULL));
  OK(drv.host_function(drv.self, from, produce, count_up, &counter));
  OK(drv.copy(drv.self, from, a, (uintptr_t)host, n, BRINGUP_HOST_TO_DEVICE, produce, NULL));
  OK(drv.copy(drv.self, from, b, a, n, BRINGUP_DEVICE_TO_DEVICE, produce, NULL));
  OK(drv.host_function(drv.self, from, produce, count_up, &counter));
  OK(drv.event_record(drv.self, from, produce, BRINGUP_EVENT_INTERPROCESS, &copied));
  OK(drv.event_export(drv.self, from, copied, handle, sizeof handle));
  OK(drv.event_import(drv.self, to, handle, &imported));
  /* Not instead of the original: ThreadSanitizer knows nothing of two addresses of one word. */
  if (below(r, 2)) OK(drv.event_wait(drv.self, to, imported, to, (int64_t)consume));
  OK(drv.event_wait(drv.self, from, copied, to, (int64_t)consume));
  if (below(r, 2)) OK(drv.event_wait(drv.self, from, copied, 0, -1));
  OK(drv.event_destroy(drv.self, from, copied)); /* perhaps still pending */
  OK(drv.event_destroy(drv.self, to, imported));
  OK(drv.copy_peer(drv.self, to, c, from, b, n, consume));
  OK(drv.copy(drv.self, to, (uintptr_t)back, c, n, BRINGUP_DEVICE_TO_HOST, consume, NULL));
  OK(drv.event_record(drv.self, to, consume, 0, &read));
  OK(drv.event_query(drv.self, to, read, &done));
  OK(drv.event_wait(drv.self, to, read, 0, -1));
  OK(drv.event_elapsed(drv.self, to, read, read, &milliseconds));
  if (memcmp(host, back, n) != 0) die("%llu bytes came back wrong", (unsigned long long)n);
  if (counter != 2) die("host functions ran %d times before the event", counter);
  REFUSED(drv.event_query(drv.self, from, copied, &done));
  OK(drv.event_destroy(drv.self, to, read));
  REFUSED(drv.event_wait(drv.self, to, read, 0, -1));
  OK(drv.host_function(drv.self, to, consume, nap, NULL)); /* destroyed while busy */
  OK(drv.stream_destroy(drv.self, to, consume));
  OK(drv.stream_destroy(drv.self, from, produce));
  REFUSED(drv.stream_destroy(drv.self, from, produce));
  OK(drv.free(drv.self, from, b));
  OK(drv.free(drv.self, to, c));
  OK(drv.free(drv.self, from, a));
}

/* ---- everybody on the default stream: inline, queued and inline again ---- */
static void shared_stream(random_state *r) {
  uint64_t cell, event, value = r->x, seen = 0;
  OK(drv.alloc(drv.self, 0, sizeof value, &cell));
  if (below(r, 4) == 0) OK(drv.host_function(drv.self, 0, 0, nap, NULL));
  for (int i = 0; i < 20; i++) {
    value++;
    OK(drv.copy(drv.self, 0, cell, (uintptr_t)&value, sizeof value, BRINGUP_HOST_TO_DEVICE, 0, NULL));
    OK(drv.copy(drv.self, 0, (uintptr_t)&seen, cell, sizeof seen, BRINGUP_DEVICE_TO_HOST, 0, NULL));
    OK(drv.event_record(drv.self, 0, 0, 0, &event));
    OK(drv.event_wait(drv.self, 0, event, 0, -1));
    OK(drv.event_destroy(drv.self, 0, event));
    if (seen != value) die("the default stream lost its order");
  }
  OK(drv.free(drv.self, 0, cell));
}

static void memory_rules(random_state *r) {
  uint64_t blocks[16], big;
  void *pinned;
  int device = (int)below(r, DEVICES);
  for (int i = 0; i < 16; i++) OK(drv.alloc(drv.self, device, 1 + below(r, 1 << 20), &blocks[i]));
  if (drv.alloc(drv.self, device, 1ull << 40, &big) != BRINGUP_OUT_OF_MEMORY) die("1 TiB fitted");
  REFUSED(drv.free(drv.self, device, blocks[0] + 8));
  for (int i = 15; i >= 0; i--) OK(drv.free(drv.self, device, blocks[(i * 7) % 16]));
  OK(drv.host_alloc(drv.self, 1000, 0, BRINGUP_HOST_PORTABLE, &pinned));
  memset(pinned, 1, 1000);
  OK(drv.host_free(drv.self, pinned));
  REFUSED(drv.host_free(drv.self, pinned));
  OK(drv.host_register(drv.self, blocks, sizeof blocks, device, 0));
  REFUSED(drv.host_register(drv.self, blocks + 1, 8, device, 0));
  OK(drv.host_unregister(drv.self, blocks));
  REFUSED(drv.host_unregister(drv.self, blocks));
}

static void *user(void *argument) {
  random_state r = {0x9e3779b97f4a7c15u * ((uintptr_t)argument + 1)};
  unsigned char *host = malloc(LARGEST), *back = malloc(LARGEST);
  if (!host || !back) die("no host memory");
  for (int round = 0; round < rounds; round++) {
    pipeline(&r, host, back);
    shared_stream(&r);
    if (round % 8 == 0) memory_rules(&r);
  }
  free(host);
  free(back);
  return NULL;
}

/* ---- kernels: inline, queued, split over threads, failing, from many threads and on several streams at once ---- */
static const char kernel_source[] =
    "#include <stdint.h>\n"
    "const uint32_t add_args = 4;\n" /* c[i] = a[i] + b[i], 64 elements per unit */
    "void add(const uint64_t *args, int64_t begin, int64_t end, int64_t *report) {\n"
    "  const int32_t *a = (const int32_t *)args[0], *b = (const int32_t *)args[1];\n"
    "  int32_t *c = (int32_t *)args[2];\n"
    "  for (int64_t i = begin * 64; i < end * 64 && i < (int64_t)args[3]; i++) c[i] = a[i] + b[i];\n"
    "}\n"
    "void pick(const uint64_t *args, int64_t begin, int64_t end, int64_t *report) {\n" /* every index is a failure */
    "  if (!report[0]) report[0] = 1, report[1] = begin + 100, report[2] = (int64_t)args[0];\n"
    "}\n";

static void *kernel_binary(uint64_t *nbytes) {
  char folder[] = "/tmp/sim_stress_XXXXXX", command[512], path[128];
  if (!mkdtemp(folder)) die("no temporary folder");
#if defined(__SANITIZE_THREAD__)
  const char *sanitizer = "-fsanitize=thread";
#elif defined(__SANITIZE_ADDRESS__)
  const char *sanitizer = "-fsanitize=address";
#else
  const char *sanitizer = "";
#endif
  snprintf(path, sizeof path, "%s/kernels.so", folder);
  snprintf(command, sizeof command, "cc -O2 -g -w -shared -fPIC %s -x c - -o %s", sanitizer, path);
  FILE *compiler = popen(command, "w");
  if (!compiler || fputs(kernel_source, compiler) < 0 || pclose(compiler) != 0) die("cannot compile: %s", command);
  FILE *file = fopen(path, "rb");
  void *binary = malloc(1 << 20);
  if (!file || !binary) die("cannot read %s", path);
  *nbytes = fread(binary, 1, 1 << 20, file);
  fclose(file);
  unlink(path);
  rmdir(folder);
  return binary;
}

static uint64_t add_kernel, pick_kernel;
static int jitter;

static int32_t launch_add(uint64_t a, uint64_t b, uint64_t c, uint64_t n, uint64_t stream, double bytes,
                          uint32_t *finished) {
  uint64_t args[] = {a, b, c, n};
  bringup_launch launch = {.args = args,
                           .arg_count = 4,
                           .address_count = 3,
                           .grid = (n + 63) / 64,
                           .stream = stream,
                           .bytes = bytes,
                           .finished = finished};
  int32_t status = drv.launch(drv.self, 0, add_kernel, &launch);
  memset(args, 0xff, sizeof args); /* the driver has copied what it needs */
  return status;
}

static void wait_for(uint64_t stream, int32_t expected) {
  uint64_t event;
  OK(drv.event_record(drv.self, 0, stream, 0, &event));
  int32_t status = drv.event_wait(drv.self, 0, event, 0, -1);
  if (status != expected) die("waiting gave %d instead of %d", status, expected);
  OK(drv.event_destroy(drv.self, 0, event));
}

static void *kernel_user(void *argument) {
  random_state r = {0x2545f4914f6cdd1du * ((uintptr_t)argument + 1)};
  enum { MOST = 40000 };
  int32_t *host = malloc(MOST * sizeof *host);
  uint64_t a, b, c, stream, indices[] = {5};
  if (!host) die("no host memory");
  OK(drv.alloc(drv.self, 0, MOST * 4, &a));
  OK(drv.alloc(drv.self, 0, MOST * 4, &b));
  OK(drv.alloc(drv.self, 0, MOST * 4, &c));
  OK(drv.stream_create(drv.self, 0, 0, &stream));
  for (int round = 0; round < rounds; round++) {
    uint64_t n = 1 + below(&r, MOST);
    uint32_t finished = 7;
    for (uint64_t i = 0; i < n; i++) host[i] = (int32_t)(i * 3 + (uint64_t)round);
    OK(drv.copy(drv.self, 0, a, (uintptr_t)host, n * 4, BRINGUP_HOST_TO_DEVICE, stream, NULL));
    OK(drv.copy(drv.self, 0, b, (uintptr_t)host, n * 4, BRINGUP_HOST_TO_DEVICE, stream, NULL));
    /* Where the stream is idle 1 byte: inline; 10 MB: inline, shared with the helpers; 30 MB: queued, and shared. */
    double bytes[] = {1, 1e7, 3e7};
    OK(launch_add(a, b, c, n, stream, bytes[below(&r, 3)], &finished));
    OK(launch_add(c, a, c, n, stream, bytes[below(&r, 3)], &finished));
    if (finished > 1) die("finished is %u", finished);
    OK(drv.copy(drv.self, 0, (uintptr_t)host, c, n * 4, BRINGUP_DEVICE_TO_HOST, stream, NULL));
    wait_for(stream, BRINGUP_OK);
    for (uint64_t i = 0; i < n; i++)
      if (host[i] != (int32_t)(3 * (i * 3 + (uint64_t)round))) die("round %d: element %d", round, (int)i);
    bringup_launch bad = {.args = indices, .arg_count = 1, .grid = 1 + below(&r, 500), .stream = stream};
    bad.bytes = bytes[2];
    OK(drv.launch(drv.self, 0, pick_kernel, &bad)); /* queued: fails later */
    wait_for(stream, BRINGUP_INDEX_ERROR);
    bad.bytes = 0;
    finished = 0;
    bad.finished = &finished;
    int32_t status = drv.launch(drv.self, 0, pick_kernel, &bad);
    if (status == BRINGUP_OK && !finished && jitter) /* queued all the same */
      wait_for(stream, BRINGUP_INDEX_ERROR);
    else if (status != BRINGUP_INDEX_ERROR)
      die("an inline failure was not reported");
    REFUSED(drv.launch(drv.self, 0, pick_kernel + 1000, &bad));
  }
  OK(drv.stream_destroy(drv.self, 0, stream));
  free(host);
  return NULL;
}

static void *kernel_loader(void *argument) { /* others load while some launch */
  uint64_t nbytes = ((uint64_t *)argument)[0], kernel;
  const void *binary = (const void *)(uintptr_t)((uint64_t *)argument)[1];
  for (int i = 0; i < 40; i++) {
    OK(drv.load(drv.self, 0, binary, nbytes, i % 2 ? "add" : "pick", &kernel));
    REFUSED(drv.load(drv.self, 0, binary, nbytes, "nothing", &kernel));
    REFUSED(drv.load(drv.self, 0, binary, nbytes / 2, "add", &kernel));
  }
  return NULL;
}

static void kernels(const char *options) {
  uint64_t nbytes, a, shared[2];
  void *binary = kernel_binary(&nbytes);
  pthread_t threads[THREADS], loader;
  bringup_device_spec spec;
  jitter = strstr(options, "jitter") != NULL;
  start_driver(options);
  for (int turn = 0; turn < 2; turn++) {
    OK(drv.load(drv.self, 0, binary, nbytes, "add", &add_kernel));
    OK(drv.load(drv.self, 0, binary, nbytes, "pick", &pick_kernel));
    shared[0] = nbytes, shared[1] = (uint64_t)(uintptr_t)binary;
    pthread_create(&loader, NULL, kernel_loader, shared);
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, kernel_user, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    pthread_join(loader, NULL);
    OK(drv.alloc(drv.self, 0, 1 << 20, &a));
    for (int i = 0; i < 20; i++) OK(launch_add(a, a, a, 1 << 18, 0, 3e7, NULL));
    OK(drv.close(drv.self, 0)); /* while kernels are queued and helpers run */
    REFUSED(launch_add(a, a, a, 1, 0, 1, NULL));
    OK(drv.open(drv.self, 0, &spec));
    OK(drv.alloc(drv.self, 0, 1 << 20, &a));
    REFUSED(launch_add(a, a, a, 1, 0, 1, NULL)); /* the kernel went with the device */
  }
  OK(drv.close(drv.self, 0));
  free(binary);
}

/* ---- partitions: every placement, on a queue that is busy ---- */
static void partitions(void) {
  enum { N = 40000 };
  static unsigned char host[N], back[N];
  uint64_t a, b, event;
  random_state r = {12345};
  start_driver("devices=1,memory=64M,partitions=4,placement=shard");
  OK(drv.alloc(drv.self, 0, N, &a));
  OK(drv.alloc(drv.self, 0, N, &b));
  for (int round = 0; round < 200; round++) {
    uint64_t offset = 4 * below(&r, 500), n = 4 + 4 * below(&r, (N - offset) / 4);
    bringup_placement x = {.kind = round % 3, .block = 8 + 8 * below(&r, 40), .offset = offset}, y = x;
    y.kind = (uint32_t)(round + 1) % 3;
    for (uint64_t i = 0; i < n; i++) host[i] = (unsigned char)below(&r, 256);
    OK(drv.host_function(drv.self, 0, 0, nap, NULL));
    OK(drv.copy(drv.self, 0, a, (uintptr_t)host, n, BRINGUP_HOST_TO_DEVICE, 0, &x));
    OK(drv.relayout(drv.self, 0, a, &y, a, &x, n, 0));
    OK(drv.copy(drv.self, 0, b, a, n, BRINGUP_DEVICE_TO_DEVICE, 0, &y));
    OK(drv.copy(drv.self, 0, (uintptr_t)back, b, n, BRINGUP_DEVICE_TO_HOST, 0, &y));
    OK(drv.event_record(drv.self, 0, 0, 0, &event));
    OK(drv.event_wait(drv.self, 0, event, 0, -1));
    OK(drv.event_destroy(drv.self, 0, event));
    if (memcmp(host, back, n) != 0) die("placement %u to %u lost bytes", x.kind, y.kind);
  }
  OK(drv.close(drv.self, 0));
}

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int bench_kernels(void) {
  enum { N = 1000000, LARGE = 1 << 22 };
  uint64_t nbytes, a;
  void *binary = kernel_binary(&nbytes);
  const char *options[] = {"devices=1,memory=64M,mode=kernels,threads=1",
                           "devices=1,memory=64M,mode=kernels,threads=2"};
  for (int i = 0; i < 2; i++) {
    start_driver(options[i]);
    OK(drv.alloc(drv.self, 0, 4 * LARGE, &a));
    OK(drv.load(drv.self, 0, binary, nbytes, "add", &add_kernel));
    double t0 = now_ns(), best = 1e18;
    for (int n = 0; n < N; n++) OK(launch_add(a, a, a, 1, 0, 12, NULL));
    double t1 = now_ns();
    for (int n = 0; n < 20; n++) {
      double start = now_ns();
      for (int k = 0; k < 8; k++) OK(launch_add(a, a, a, LARGE, 0, 12.0 * LARGE, NULL));
      wait_for(0, BRINGUP_OK);
      double taken = (now_ns() - start) / 8;
      if (taken < best) best = taken;
    }
    printf("%s: inline launch of 1 element %.0f ns, of %d elements %.0f us\n", options[i], (t1 - t0) / N, LARGE,
           best / 1e3);
    OK(drv.close(drv.self, 0));
  }
  free(binary);
  return 0;
}

static int bench(void) {
  enum { N = 1000000 };
  uint64_t cell, event, value = 1;
  start_driver("devices=1,memory=64M");
  OK(drv.alloc(drv.self, 0, 8, &cell));
  double t0 = now_ns();
  for (int i = 0; i < N; i++) OK(drv.copy(drv.self, 0, cell, (uintptr_t)&value, 8, BRINGUP_HOST_TO_DEVICE, 0, NULL));
  double t1 = now_ns();
  for (int i = 0; i < N; i++) {
    OK(drv.event_record(drv.self, 0, 0, 0, &event));
    OK(drv.event_wait(drv.self, 0, event, 0, -1));
    OK(drv.event_destroy(drv.self, 0, event));
  }
  double t2 = now_ns();
  for (int i = 0; i < N / 100; i++) {
    OK(drv.host_function(drv.self, 0, 0, count_up, &(int){0}));
    OK(drv.event_record(drv.self, 0, 0, 0, &event));
    OK(drv.event_wait(drv.self, 0, event, 0, -1));
    OK(drv.event_destroy(drv.self, 0, event));
  }
  double t3 = now_ns();
  printf("8-byte copy, inline %.0f ns; event record + wait + destroy, idle %.0f ns; queued round trip %.0f ns\n",
         (t1 - t0) / N, (t2 - t1) / N, (t3 - t2) / (N / 100));
  OK(drv.close(drv.self, 0));
  return bench_kernels();
}

int main(int argc, char **argv) {
  if (argc > 1 && !strcmp(argv[1], "--bench")) return bench();
  const char *options[] = {"devices=3,memory=512M",
                           "devices=3,memory=512M,peak_flops.float32=1e12,bandwidth=1e11,launch_ns=100",
                           "devices=3,memory=512M,jitter=1"};
  for (int run = 0; run < 3; run++) {
    bringup_device_spec spec;
    pthread_t threads[THREADS];
    uint64_t ns;
    rounds = run == 2 ? 15 : 120;
    start_driver(options[run]);
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, user, (void *)i);
    bringup_clock_pair now;
    bringup_trace_record records[64];
    uint64_t read, dropped;
    for (int i = 0; i < 50; i++) {
      OK(drv.clock(drv.self, i % DEVICES, &ns));
      OK(drv.trace_start(drv.self, i % DEVICES, 1 + (uint64_t)i * 100, &now));
      usleep(1000);
      OK(drv.trace_read(drv.self, i % DEVICES, records, 64, &read, &dropped));
      OK(drv.trace_stop(drv.self, i % DEVICES, &now));
      OK(drv.trace_read(drv.self, i % DEVICES, records, 64, &read, &dropped));
      for (uint64_t n = 0; n < read; n++)
        if (records[n].start_ns > records[n].end_ns) die("a record ends before it starts");
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int d = 0; d < DEVICES; d++) {
      OK(drv.host_function(drv.self, d, 0, nap, NULL));
      OK(drv.close(drv.self, d)); /* drains */
      REFUSED(drv.alloc(drv.self, d, 8, &ns));
      OK(drv.open(drv.self, d, &spec));
      OK(drv.alloc(drv.self, d, 8, &ns));
      OK(drv.close(drv.self, d));
    }
  }
  partitions();
  kernels("devices=1,memory=512M,mode=kernels,threads=4,jitter=2");
  rounds = 120;
  kernels("devices=1,memory=512M,mode=kernels,threads=4");
  puts("sim_stress: clean");
  return 0;
}
