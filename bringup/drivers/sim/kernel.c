/* Kernels: a binary becomes a function through the dynamic loader, from memory, and a handle that can be checked.
 *
 * The bytes go into a memfd that is loaded as /proc/self/fd/N: no file that another user could exchange, nothing left
 * behind. The loader knows libraries by the text of their path and descriptor numbers are used again, so every path is
 * spelled differently: path_of. Handles hold the device's number and a slot that is never used twice.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010u /* Linux 6.3 */
#endif

/* The loader trusts the tables of a file and dies of a cut one (SIGBUS), so their ends are checked first. */
static const char *wrong_with(const char *binary, uint64_t nbytes) {
  ElfW(Ehdr) header;
  if (nbytes < sizeof header || memcmp(binary, ELFMAG, SELFMAG) != 0) return "it is not an ELF file";
  memcpy(&header, binary, sizeof header);
  if (header.e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32)) return "it is for another word size";
  if (header.e_type != ET_DYN) return "it is not a shared object";
  if (header.e_phentsize != sizeof(ElfW(Phdr)) || header.e_phoff > nbytes ||
      header.e_phnum > (nbytes - header.e_phoff) / sizeof(ElfW(Phdr)))
    return "it is cut short";
  for (uint32_t i = 0; i < header.e_phnum; i++) {
    ElfW(Phdr) part;
    memcpy(&part, binary + header.e_phoff + i * sizeof part, sizeof part);
    if (part.p_offset > nbytes || part.p_filesz > nbytes - part.p_offset) return "it is cut short";
  }
  return NULL;
}

static int write_all(int fd, const char *data, uint64_t nbytes) {
  for (uint64_t done = 0; done < nbytes;) {
    ssize_t count = write(fd, data + done, nbytes - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return 0;
    done += (uint64_t)count;
  }
  return 1;
}

/* Another text for the same file every time: the bits of a running number as "/." and "/". */
static void path_of(int fd, char *path, size_t size) {
  static _Atomic uint64_t running;
  size_t length = (size_t)snprintf(path, size, "/proc/self/fd");
  for (uint64_t n = atomic_fetch_add(&running, 1) + 1; n; n >>= 1)
    length += (size_t)snprintf(path + length, size - length, n & 1 ? "/." : "/");
  snprintf(path + length, size - length, "/%d", fd);
}

static void *load_from_memory(const char *binary, uint64_t nbytes, const char *entry) {
  char name[160], path[256];
  snprintf(name, sizeof name, "bringup-kernel-%.100s", entry);
  int fd = memfd_create(name, MFD_CLOEXEC | MFD_EXEC);
  if (fd < 0 && errno == EINVAL) fd = memfd_create(name, MFD_CLOEXEC); /* an older Linux, where all are executable */
  if (fd < 0) return NULL;
  path_of(fd, path, sizeof path);
  void *library = write_all(fd, binary, nbytes) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  close(fd);
  return library;
}

/* Where /proc or executable memfds are missing. mkstemp makes a new file of ours that only we can write. */
static void *load_from_file(const char *binary, uint64_t nbytes) {
  char path[512];
  const char *folder = getenv("TMPDIR");
  snprintf(path, sizeof path, "%.400s/bringup-kernel-XXXXXX", folder && *folder ? folder : "/tmp");
  int fd = mkstemp(path);
  if (fd < 0) return NULL;
  void *library = write_all(fd, binary, nbytes) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  close(fd);
  unlink(path);
  return library;
}

/* A slot for one more kernel; the caller holds kernel_lock. */
static sim_kernel *new_slot(sim_device *d, uint32_t *slot) {
  *slot = atomic_load_explicit(&d->kernel_count, memory_order_relaxed);
  uint32_t chunk = *slot / SIM_KERNEL_CHUNK;
  if (chunk == SIM_KERNEL_CHUNKS) return NULL;
  sim_kernel *kernels = atomic_load(&d->kernel_chunks[chunk]);
  if (!kernels) {
    kernels = calloc(SIM_KERNEL_CHUNK, sizeof *kernels);
    if (!kernels) return NULL;
    atomic_store(&d->kernel_chunks[chunk], kernels);
  }
  return &kernels[*slot % SIM_KERNEL_CHUNK];
}

static sim_kernel *kernel_at(sim_device *d, uint32_t slot) {
  return &atomic_load_explicit(&d->kernel_chunks[slot / SIM_KERNEL_CHUNK],
                               memory_order_acquire)[slot % SIM_KERNEL_CHUNK];
}

static int32_t add(sim_device *d, void *library, const char *entry, uint64_t *handle) {
  char counted[256];
  union {
    void *symbol;
    bringup_kernel function;
  } found = {.symbol = dlsym(library, entry)};
  if (!found.symbol) return sim_fail(BRINGUP_INVALID, "load: the binary has no function \"%.200s\"", entry);
  snprintf(counted, sizeof counted, "%.200s_args", entry);
  const uint32_t *count = dlsym(library, counted);
  uint32_t slot;
  pthread_mutex_lock(&d->kernel_lock);
  sim_kernel *kernel = atomic_load(&d->state) == SIM_OPEN ? new_slot(d, &slot) : NULL;
  if (kernel) {
    kernel->function = found.function;
    kernel->library = library;
    kernel->arg_count = count ? *count : SIM_ANY_COUNT;
    snprintf(kernel->name, sizeof kernel->name, "%s", entry);
    atomic_store_explicit(&d->kernel_count, slot + 1, memory_order_release);
    *handle = (uint64_t)(d->index + 1) << 32 | (slot + 1);
  }
  pthread_mutex_unlock(&d->kernel_lock);
  if (kernel) return BRINGUP_OK;
  return sim_fail(BRINGUP_ERROR, "load: device %d has no room for another kernel, or is being closed", d->index);
}

int32_t sim_load(void *self, int32_t index, const void *binary, uint64_t nbytes, const char *entry, uint64_t *handle) {
  sim_device *d;
  int32_t status = sim_find(self, index, &d);
  if (status != BRINGUP_OK) return status;
  if (!handle) return sim_fail(BRINGUP_INVALID, "load: no place for the handle");
  if (!entry || !*entry) return sim_fail(BRINGUP_INVALID, "load: no name of a function");
  const char *wrong = binary ? wrong_with(binary, nbytes) : "there is none";
  if (wrong)
    return sim_fail(BRINGUP_INVALID, "load: the binary of %llu bytes cannot be used: %s", (unsigned long long)nbytes,
                    wrong);
  void *library = load_from_memory(binary, nbytes, entry);
  if (!library) library = load_from_file(binary, nbytes);
  if (!library) {
    const char *reason = dlerror();
    return sim_fail(BRINGUP_INVALID, "load: the binary of %llu bytes cannot be loaded: %s", (unsigned long long)nbytes,
                    reason ? reason : strerror(errno));
  }
  status = add(d, library, entry, handle);
  if (status != BRINGUP_OK) dlclose(library);
  return status;
}

int32_t sim_kernel_find(sim_device *d, uint64_t handle, const sim_kernel **kernel) {
  uint32_t slot = (uint32_t)handle - 1;
  if (__builtin_expect(handle >> 32 == (uint64_t)(d->index + 1) &&
                           slot < atomic_load_explicit(&d->kernel_count, memory_order_acquire) &&
                           slot >= atomic_load_explicit(&d->kernel_first, memory_order_relaxed),
                       1)) {
    *kernel = kernel_at(d, slot);
    return BRINGUP_OK;
  }
  return sim_fail(BRINGUP_INVALID, "launch: kernel %llu was not loaded on device %d, or the device was closed since",
                  (unsigned long long)handle, d->index);
}

void sim_kernels_close(sim_device *d) {
  pthread_mutex_lock(&d->kernel_lock);
  uint32_t first = atomic_load(&d->kernel_first), count = atomic_load(&d->kernel_count);
  atomic_store(&d->kernel_first, count);
  for (uint32_t slot = first; slot < count; slot++) dlclose(kernel_at(d, slot)->library);
  pthread_mutex_unlock(&d->kernel_lock);
}
