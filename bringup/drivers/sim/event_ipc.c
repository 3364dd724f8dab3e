/* Events that another process can wait for: each has a word in the last pages of the device's memory file.
 *
 * A word holds a number that is new each time it is used, and whether the event is done. A word is used again only
 * after its event was completed and forgotten: so an importer that finds another number there knows that its event is
 * done. Handle: "pid:fd:word:number:token", of the file that ipc.c opens.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

#define WORDS (SIM_SHARED_EVENT_BYTES / sizeof(uint32_t))
_Static_assert(WORDS == sizeof((sim_device *)0)->event_word_used, "a mark for each word");

int sim_shared_events_open(sim_device *d, uint64_t file_offset) {
  if (d->event_words) munmap((void *)d->event_words, SIM_SHARED_EVENT_BYTES);
  d->event_words = NULL;
  void *at = mmap(NULL, SIM_SHARED_EVENT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, d->fd, (off_t)file_offset);
  if (at == MAP_FAILED) return 0;
  d->event_words = at;
  return 1;
}

/* Gives a new event a word; the caller holds event_lock. */
int sim_event_share(sim_device *d, sim_event *event) {
  for (uint32_t tried = 0; tried < WORDS; tried++) {
    uint32_t word = d->event_word_next++ % WORDS;
    if (d->event_word_used[word]) continue;
    d->event_word_used[word] = 1;
    event->shared = &d->event_words[word];
    event->shared_number = (atomic_load(event->shared) >> 1) + 1;
    atomic_store(event->shared, event->shared_number << 1);
    return 1;
  }
  return 0;
}

/* Nothing refers to the event any more; the caller holds event_lock. */
void sim_event_unshare(sim_device *d, sim_event *event) {
  if (event->mapping)
    munmap(event->mapping, SIM_SHARED_EVENT_BYTES);
  else
    d->event_word_used[event->shared - d->event_words] = 0;
  event->shared = NULL;
  event->mapping = NULL;
}

void sim_event_tell_others(sim_event *event) {
  atomic_store(event->shared, event->shared_number << 1 | 1);
  syscall(SYS_futex, event->shared, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

int sim_imported_done(sim_event *event) {
  uint32_t now = atomic_load_explicit(event->shared, memory_order_acquire);
  return now != event->shared_number << 1;
}

/* A process that has ended does no more work: what it would have marked counts as done. */
void sim_imported_wait(sim_event *event) {
  const struct timespec look_again = {.tv_nsec = 50000000};
  while (!sim_imported_done(event)) {
    syscall(SYS_futex, event->shared, FUTEX_WAIT, event->shared_number << 1, &look_again, NULL, 0);
    if (kill(event->exporter, 0) != 0 && errno == ESRCH) return;
  }
}

int32_t sim_event_export(void *self, int32_t index, uint64_t handle, char *text, uint64_t size) {
  sim_device *d;
  sim_event *event;
  int32_t status = sim_find(self, index, &d);
  if (status == BRINGUP_OK) status = sim_event_hold(d, handle, &event);
  if (status != BRINGUP_OK) return status;
  int length = -1;
  if (event->shared && !event->mapping && text)
    length = snprintf(text, size, "%d:%d:%u:%u:%s", (int)getpid(), d->fd, (unsigned)(event->shared - d->event_words),
                      event->shared_number, d->token);
  sim_event_drop(d, event);
  if (length >= 0 && (uint64_t)length < size) return BRINGUP_OK;
  return sim_fail(
      BRINGUP_INVALID,
      "event_export: event %llu of device %d was not recorded here as INTERPROCESS, or the handle has no room",
      (unsigned long long)handle, index);
}

int32_t sim_event_import(void *self, int32_t index, const char *text, uint64_t *handle) {
  sim_device *d;
  int32_t status = sim_find(self, index, &d);
  if (status != BRINGUP_OK) return status;
  int pid = 0, remote = -1, fd = -1, end = 0;
  unsigned word = 0, number = 0;
  char token[33];
  if (!text || !handle || sscanf(text, "%d:%d:%u:%u:%32[0-9a-f]%n", &pid, &remote, &word, &number, token, &end) != 5 ||
      text[end] || strlen(token) != 32 || pid <= 0 || word >= WORDS)
    return sim_fail(BRINGUP_INVALID, "event_import: \"%.80s\" is not a handle from event_export", text ? text : "");
  uint64_t nbytes;
  status = sim_open_shared("event_import", pid, remote, token, &fd, &nbytes);
  if (status != BRINGUP_OK) return status;
  void *page = mmap(NULL, SIM_SHARED_EVENT_BYTES, PROT_READ, MAP_SHARED, fd, (off_t)(nbytes - SIM_SHARED_EVENT_BYTES));
  close(fd);
  if (page == MAP_FAILED) return sim_fail(BRINGUP_ERROR, "event_import: %s", strerror(errno));
  sim_event *event = sim_event_take(d, 1, handle);
  if (!event) {
    munmap(page, SIM_SHARED_EVENT_BYTES);
    return sim_fail(BRINGUP_ERROR, "device %d has no room for another event", index);
  }
  event->stream = NULL;
  event->time_ns = 0; /* the clocks of two processes have nothing to do with each other */
  event->mapping = page;
  event->shared = (_Atomic uint32_t *)page + word;
  event->shared_number = number;
  event->exporter = pid;
  return BRINGUP_OK;
}
