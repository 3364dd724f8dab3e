/* Host memory that stands for pinned: allocated here, or the caller's own. Both kinds are kept in a list, so that a
 * wrong host_free or host_unregister is an error instead of a crash. */
#include <stdlib.h>

#include "sim.h"

typedef struct pinned {
  struct pinned *next;
  char *start;
  uint64_t nbytes;
  uint64_t registered; /* the caller's own; else the memory lies behind this header */
  uint64_t reserved[4];
} pinned;
_Static_assert(sizeof(pinned) == 64, "what lies behind it stays aligned to 64 bytes");
static pinned *all_pinned; /* under sim_process_lock */

static int32_t check(sim *s, const char *what, int32_t index, uint32_t flags) {
  if (index < 0 || index >= s->options.devices)
    return sim_fail(BRINGUP_INVALID, "%s: device %d does not exist: there are %d devices", what, index,
                    s->options.devices);
  if (flags & ~(BRINGUP_HOST_PORTABLE | SIM_HOST_FLAGS))
    return sim_fail(BRINGUP_UNSUPPORTED, "%s: of flags %#x only %#x can be honoured", what, flags,
                    BRINGUP_HOST_PORTABLE | SIM_HOST_FLAGS);
  return BRINGUP_OK;
}

static void add(pinned *memory, char *start, uint64_t nbytes, int registered) {
  memory->start = start;
  memory->nbytes = nbytes;
  memory->registered = (uint64_t)registered;
  memory->next = all_pinned;
  all_pinned = memory;
}

/* Takes what begins at a pointer out of the list. */
static pinned *take(const void *pointer, int registered) {
  pinned *found = NULL;
  pthread_mutex_lock(&sim_process_lock);
  for (pinned **at = &all_pinned; *at; at = &(*at)->next) {
    if ((*at)->start == pointer && (*at)->registered == (uint64_t)registered) {
      found = *at;
      *at = found->next;
      break;
    }
  }
  pthread_mutex_unlock(&sim_process_lock);
  return found;
}

int32_t sim_host_alloc(void *self, uint64_t nbytes, int32_t index, uint32_t flags, void **pointer) {
  int32_t status = check(self, "host_alloc", index, flags);
  if (status != BRINGUP_OK) return status;
  if (!pointer) return sim_fail(BRINGUP_INVALID, "host_alloc: no place for the pointer");
  void *memory = NULL;
  if (nbytes > SIZE_MAX - 2 * SIM_PAGE || posix_memalign(&memory, 64, sizeof(pinned) + nbytes) != 0)
    return sim_fail(BRINGUP_OUT_OF_MEMORY, "host_alloc: the host has no %llu bytes", (unsigned long long)nbytes);
  pthread_mutex_lock(&sim_process_lock);
  add(memory, (char *)memory + sizeof(pinned), nbytes, 0);
  pthread_mutex_unlock(&sim_process_lock);
  *pointer = (char *)memory + sizeof(pinned);
  return BRINGUP_OK;
}

int32_t sim_host_free(void *self, void *pointer) {
  (void)self;
  pinned *found = take(pointer, 0);
  if (!found)
    return sim_fail(BRINGUP_INVALID, "host_free: %p did not come from host_alloc, or was freed before", pointer);
  free(found);
  return BRINGUP_OK;
}

int32_t sim_host_register(void *self, void *pointer, uint64_t nbytes, int32_t index, uint32_t flags) {
  int32_t status = check(self, "host_register", index, flags);
  if (status != BRINGUP_OK) return status;
  char *start = pointer;
  if (!start || !nbytes || nbytes > UINTPTR_MAX - (uintptr_t)start)
    return sim_fail(BRINGUP_INVALID, "host_register: %llu bytes at %p are no memory", (unsigned long long)nbytes,
                    pointer);
  pinned *memory = calloc(1, sizeof *memory);
  if (!memory) return sim_fail(BRINGUP_OUT_OF_MEMORY, "host_register: the host has no memory");
  int overlaps = 0;
  pthread_mutex_lock(&sim_process_lock);
  for (const pinned *other = all_pinned; other; other = other->next)
    overlaps |= start < other->start + other->nbytes && other->start < start + nbytes;
  if (!overlaps) add(memory, start, nbytes, 1);
  pthread_mutex_unlock(&sim_process_lock);
  if (!overlaps) return BRINGUP_OK;
  free(memory);
  return sim_fail(BRINGUP_INVALID, "host_register: some of the %llu bytes at %p are pinned already",
                  (unsigned long long)nbytes, pointer);
}

int32_t sim_host_unregister(void *self, void *pointer) {
  (void)self;
  pinned *found = take(pointer, 1);
  if (!found) return sim_fail(BRINGUP_INVALID, "host_unregister: nothing was registered at %p", pointer);
  free(found);
  return BRINGUP_OK;
}
