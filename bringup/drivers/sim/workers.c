/* One large kernel on several cores: its units are taken in chunks, by the stream's worker and by the device's helpers.
 *
 * Chunks are taken one by one, so that a core that is slower or busy simply takes fewer. Kernels of several streams can
 * be in the list at once; a helper goes to the first that has units left.
 */
#include <stdio.h>

#include "sim.h"

/* Chunks per thread: more even out better, fewer cost less. */
#define CHUNKS_PER_THREAD 8
#define CHUNK_NS 10000.0 /* no chunk should be shorter: handing one out takes under 0.1 µs */

typedef struct sim_job {
  const sim_kernel *kernel;
  const uint64_t *args;
  int64_t grid, chunk;
  _Atomic int64_t next; /* the first unit not yet taken */
  uint32_t helpers;     /* inside it now; with the rest, under workers.lock */
  sim_report report;
  int64_t reported_by; /* first unit of the chunk that reported: the lowest one counts, whoever ran it */
  struct sim_job *following;
} sim_job;

void sim_workers_init(sim_workers *workers) {
  pthread_mutex_init(&workers->lock, NULL);
  pthread_cond_init(&workers->wake, NULL);
  pthread_cond_init(&workers->done, NULL);
}

static void take_chunks(sim_workers *workers, sim_job *job) {
  for (;;) {
    int64_t begin = atomic_fetch_add_explicit(&job->next, job->chunk, memory_order_relaxed);
    if (begin >= job->grid) return;
    int64_t words[3] = {0, 0, 0}, end = job->grid - begin > job->chunk ? begin + job->chunk : job->grid;
    job->kernel->function(job->args, begin, end, words);
    if (!words[0]) continue;
    pthread_mutex_lock(&workers->lock);
    if (!job->report.kernel || begin < job->reported_by) {
      job->report = (sim_report){job->kernel, words[1], words[2]};
      job->reported_by = begin;
    }
    pthread_mutex_unlock(&workers->lock);
  }
}

static sim_job *first_with_units(const sim_workers *workers) {
  for (sim_job *job = workers->jobs; job; job = job->following)
    if (atomic_load_explicit(&job->next, memory_order_relaxed) < job->grid) return job;
  return NULL;
}

static void *help(void *argument) {
  sim_workers *workers = argument;
  pthread_mutex_lock(&workers->lock);
  while (!workers->stopping) {
    sim_job *job = first_with_units(workers);
    if (!job) {
      pthread_cond_wait(&workers->wake, &workers->lock);
      continue;
    }
    job->helpers++;
    pthread_mutex_unlock(&workers->lock);
    take_chunks(workers, job);
    pthread_mutex_lock(&workers->lock);
    if (--job->helpers == 0) pthread_cond_broadcast(&workers->done);
  }
  pthread_mutex_unlock(&workers->lock);
  return NULL;
}

/* With fewer helpers than asked for, or none, the work is only slower. The caller holds the lock. */
static void start_helpers(sim_device *d) {
  sim_workers *workers = &d->workers;
  while (workers->count + 1 < d->owner->options.threads) {
    char name[16];
    snprintf(name, sizeof name, "sim%d helper", d->index % 100);
    if (sim_start_thread(&workers->threads[workers->count], help, workers, name) != 0) return;
    workers->count++;
  }
}

void sim_workers_run(sim_device *d, const sim_kernel *kernel, const uint64_t *args, int64_t grid, double host_ns,
                     sim_report *report) {
  sim_workers *workers = &d->workers;
  uint32_t threads = d->owner->options.threads;
  double most = host_ns / CHUNK_NS;
  int64_t chunks = (int64_t)threads * CHUNKS_PER_THREAD;
  if (threads == 1 || (double)chunks > most) chunks = threads == 1 ? 1 : (int64_t)most;
  if (chunks > grid) chunks = grid;
  sim_job job = {.kernel = kernel, .args = args, .grid = grid, .chunk = (grid - 1) / chunks + 1};
  if (chunks > 1) {
    pthread_mutex_lock(&workers->lock);
    start_helpers(d);
    job.following = workers->jobs;
    workers->jobs = &job;
    pthread_cond_broadcast(&workers->wake);
    pthread_mutex_unlock(&workers->lock);
  }
  take_chunks(workers, &job);
  if (chunks > 1) {
    pthread_mutex_lock(&workers->lock);
    sim_job **at = &workers->jobs;
    while (*at != &job) at = &(*at)->following;
    *at = job.following;
    while (job.helpers) pthread_cond_wait(&workers->done, &workers->lock);
    pthread_mutex_unlock(&workers->lock);
  }
  *report = job.report;
}

/* The device is closing and its streams have ended: no kernel runs. A reopened device starts new helpers. */
void sim_workers_stop(sim_workers *workers) {
  pthread_mutex_lock(&workers->lock);
  workers->stopping = 1;
  pthread_cond_broadcast(&workers->wake);
  pthread_mutex_unlock(&workers->lock);
  for (uint32_t i = 0; i < workers->count; i++) pthread_join(workers->threads[i], NULL);
  workers->count = 0;
  workers->stopping = 0;
}
