/* Worker threads: as many as this process may use cores, made at the first use and again after a fork. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "upmem.h"

enum { TICK_NANOSECONDS = 50000000 };

static struct {
  pthread_mutex_t lock;
  pthread_cond_t start, done;
  pthread_t threads[WORKERS_MAX];
  uint32_t size, running;
  uint64_t round;
  pid_t process;
  void (*work)(void *, uint32_t);
  void *argument;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .start = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};
/* One launch or large transfer at a time uses the workers. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

uint32_t pool_size(void) {
  static uint32_t size;
  if (!size) {
    const char *asked = getenv("BRINGUP_UPMEM_THREADS");
    cpu_set_t mine;
    long count = asked ? atol(asked) : sched_getaffinity(0, sizeof mine, &mine) ? 1 : CPU_COUNT(&mine);
    size = count < 1 ? 1 : count > WORKERS_MAX ? WORKERS_MAX : (uint32_t)count;
  }
  return size;
}

uint32_t worker_of(uint32_t index, uint32_t count) { return (uint32_t)((uint64_t)index * pool_size() / count); }

static void *serve(void *index) {
  uint64_t seen = 0;
  stack_t alternate = {.ss_sp = malloc(64 << 10), .ss_size = 64 << 10};
  if (alternate.ss_sp) sigaltstack(&alternate, NULL); /* a tasklet's own stack may be what overflowed */
  pthread_mutex_lock(&pool.lock);
  for (;;) {
    while (pool.round == seen) pthread_cond_wait(&pool.start, &pool.lock);
    seen = pool.round;
    pthread_mutex_unlock(&pool.lock);
    pool.work(pool.argument, (uint32_t)(uintptr_t)index);
    pthread_mutex_lock(&pool.lock);
    if (--pool.running == 0) pthread_cond_signal(&pool.done);
  }
  return NULL;
}

static void start_threads(void) {
  if (pool.process == getpid()) return;
  pool.process = getpid();
  pool.round = 0;
  pthread_mutex_init(&pool.lock, NULL);
  pthread_cond_init(&pool.start, NULL);
  pthread_cond_init(&pool.done, NULL);
  sigset_t all, before;
  sigfillset(&all);
  sigdelset(&all, SIGSEGV), sigdelset(&all, SIGBUS), sigdelset(&all, SIGFPE), sigdelset(&all, SIGILL);
  sigdelset(&all, SIGURG);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's own signals go to its own threads */
  for (pool.size = 0; pool.size < pool_size(); pool.size++) {
    void *index = (void *)(uintptr_t)pool.size;
    if (pthread_create(&pool.threads[pool.size], NULL, serve, index)) abort(); /* not even one more thread */
    pthread_detach(pool.threads[pool.size]);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void fork_prepare(void) { pthread_mutex_lock(&turn); }
static void fork_release(void) { pthread_mutex_unlock(&turn); }

void pool_run(void (*work)(void *, uint32_t), void *argument, void (*tick)(void *)) {
  static bool hooked;
  pthread_mutex_lock(&turn);
  if (!hooked) hooked = !pthread_atfork(fork_prepare, fork_release, fork_release);
  start_threads();
  pthread_mutex_lock(&pool.lock);
  pool.work = work;
  pool.argument = argument;
  pool.running = pool.size;
  pool.round++;
  pthread_cond_broadcast(&pool.start);
  while (pool.running) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += TICK_NANOSECONDS;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_cond_timedwait(&pool.done, &pool.lock, &until);
    if (pool.running && tick) tick(argument);
  }
  pthread_mutex_unlock(&pool.lock);
  pthread_mutex_unlock(&turn);
}

void pool_interrupt(uint32_t index, int signal) { pthread_kill(pool.threads[index], signal); }
