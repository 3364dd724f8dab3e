/* A DPU program: an ELF file of 32 bits for x86-64, moved to where each worker has room below 4 GiB.
 *
 * The linker keeps its relocations (--emit-relocs): what holds an address in text or WRAM moves with them, what holds
 * one in MRAM does not.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rv32.h"

static const Elf32_Ehdr *header_of(const struct dpu_program_t *program) { return (const Elf32_Ehdr *)program->file; }
static const Elf32_Shdr *sections_of(const struct dpu_program_t *program) {
  return (const Elf32_Shdr *)(program->file + header_of(program)->e_shoff);
}
static bool in_mram(uint32_t address) { return address >= MRAM_AT && address < MRAM_AT + MRAM_BYTES + 1u; }

/* Whether every table of the file lies in the file. */
static bool sound(const uint8_t *file, size_t bytes) {
  const Elf32_Ehdr *header = (const Elf32_Ehdr *)file;
  if (bytes < sizeof *header || memcmp(file, ELFMAG, SELFMAG) || header->e_ident[EI_CLASS] != ELFCLASS32 ||
      header->e_machine != EM_X86_64 || header->e_type != ET_EXEC || header->e_shentsize != sizeof(Elf32_Shdr) ||
      header->e_phentsize != sizeof(Elf32_Phdr) || header->e_shoff % 4 || header->e_phoff % 4)
    return false;
  if (header->e_shoff > bytes || (bytes - header->e_shoff) / sizeof(Elf32_Shdr) < header->e_shnum) return false;
  if (header->e_phoff > bytes || (bytes - header->e_phoff) / sizeof(Elf32_Phdr) < header->e_phnum) return false;
  const Elf32_Shdr *sections = (const Elf32_Shdr *)(file + header->e_shoff);
  const Elf32_Phdr *segments = (const Elf32_Phdr *)(file + header->e_phoff);
  for (int i = 0; i < header->e_shnum; i++)
    if (sections[i].sh_type != SHT_NOBITS &&
        (sections[i].sh_offset > bytes || bytes - sections[i].sh_offset < sections[i].sh_size))
      return false;
  for (int i = 0; i < header->e_phnum; i++)
    if (segments[i].p_offset > bytes || bytes - segments[i].p_offset < segments[i].p_filesz) return false;
  return true;
}

static dpu_error_t read_symbols(struct dpu_program_t *program) {
  const Elf32_Shdr *sections = sections_of(program);
  for (int i = 0; i < header_of(program)->e_shnum; i++) {
    if (sections[i].sh_type != SHT_SYMTAB || sections[i].sh_link >= header_of(program)->e_shnum) continue;
    const Elf32_Shdr *names = &sections[sections[i].sh_link];
    const Elf32_Sym *from = (const Elf32_Sym *)(program->file + sections[i].sh_offset);
    uint32_t count = sections[i].sh_size / sizeof *from;
    program->symbols = calloc(count, sizeof *program->symbols);
    if (!program->symbols) return failed(DPU_ERR_SYSTEM, "no memory for the symbols of %s", program->path);
    for (uint32_t s = 0; s < count; s++) {
      if (from[s].st_name >= names->sh_size || from[s].st_shndx == SHN_UNDEF) continue;
      const char *name = (const char *)program->file + names->sh_offset + from[s].st_name;
      if (!*name) continue;
      program->symbols[program->symbol_count++] = (struct symbol){name, from[s].st_value, from[s].st_size};
    }
    return DPU_OK;
  }
  return failed(DPU_ERR_ELF_INVALID_FILE, "%s has no symbols: was it stripped?", program->path);
}

static uint32_t address_of(const struct dpu_program_t *program, const char *name) {
  const struct symbol *symbol = program_symbol(program, name);
  return symbol ? symbol->address : 0;
}

/* What compiler.py appends to a program that is to be timed: how to count it, its length, a mark. */
static struct timing *take_timing(const uint8_t *file, size_t *bytes) {
  uint64_t length;
  if (*bytes < 16 || memcmp(file + *bytes - 8, "dputime!", 8)) return NULL;
  memcpy(&length, file + *bytes - 16, 8);
  if (length > *bytes - 16) return NULL;
  *bytes -= 16 + length;
  return timing_new(file + *bytes, length);
}

dpu_error_t program_new(const uint8_t *file, size_t bytes, const char *path, struct dpu_program_t **out) {
  struct timing *timing = take_timing(file, &bytes);
  if (!sound(file, bytes)) {
    timing_free(timing);
    return failed(DPU_ERR_ELF_INVALID_FILE,
                  "%s was not built for this simulator: build it with the compiler that `bringup upmem path` names",
                  path);
  }
  struct dpu_program_t *program = calloc(1, sizeof *program);
  uint8_t *kept = program ? malloc(bytes) : NULL;
  if (!kept) {
    free(program);
    timing_free(timing);
    return failed(DPU_ERR_SYSTEM, "no memory for %s", path);
  }
  program->references = 1;
  program->timing = timing;
  program->path = strdup(path);
  program->file = memcpy(kept, file, bytes);
  program->file_bytes = bytes;
  dpu_error_t status = read_symbols(program);
  if (status == DPU_OK) {
    program->link_base = 0x40000000;
    program->entry = address_of(program, "__bringup_start");
    program->services_at = address_of(program, "__bringup_services");
    program->me_at = address_of(program, "__bringup_me");
    program->counts_at = address_of(program, "__bringup_counts");
    program->heap_high_at = address_of(program, "__bringup_heap_high");
    program->wram_at = address_of(program, "__bringup_wram_start");
    program->data_bytes = address_of(program, "__bringup_data_end") - program->wram_at;
    program->tasklets = address_of(program, "__bringup_tasklets");
    program->mram_bytes = address_of(program, "__sys_used_mram_end") - MRAM_AT;
    program->image_bytes = program->wram_at - program->link_base + WRAM_BYTES;
    if (!program->entry || !program->services_at || !program->me_at || !program->counts_at || !program->heap_high_at ||
        program->wram_at < program->link_base || program->image_bytes > (64u << 20))
      status = failed(DPU_ERR_ELF_INVALID_FILE, "%s is not linked with the simulator's run-time", path);
    else if (program->tasklets < 1 || program->tasklets > TASKLETS_MAX)
      status = failed(DPU_ERR_ELF_INVALID_FILE, "%s has NR_TASKLETS=%u; a DPU has 1 to %d tasklets", path,
                      program->tasklets, TASKLETS_MAX);
    else if (program->data_bytes > WRAM_BYTES)
      status = failed(DPU_ERR_ELF_INVALID_FILE, "%s: its variables take %u bytes; WRAM has %d", path,
                      program->data_bytes, WRAM_BYTES);
    else if (program->mram_bytes > MRAM_BYTES)
      status = failed(DPU_ERR_ELF_INVALID_FILE, "%s: its MRAM variables take %u bytes; MRAM has %d", path,
                      program->mram_bytes, MRAM_BYTES);
  }
  if (status != DPU_OK) {
    program_drop(program);
    return status;
  }
  *out = program;
  return DPU_OK;
}

void program_keep(struct dpu_program_t *program) { __atomic_add_fetch(&program->references, 1, __ATOMIC_RELAXED); }

void program_drop(struct dpu_program_t *program) {
  if (!program || __atomic_sub_fetch(&program->references, 1, __ATOMIC_ACQ_REL)) return;
  for (int i = 0; i < WORKERS_MAX; i++) {
    if (program->copies[i].base) munmap(program->copies[i].base, program->copies[i].bytes);
    free(program->copies[i].fresh);
  }
  timing_free(program->timing);
  free(program->symbols);
  free(program->path);
  free(program->file);
  free(program);
}

const struct symbol *program_symbol(const struct dpu_program_t *program, const char *name) {
  for (uint32_t i = 0; i < program->symbol_count; i++)
    if (!strcmp(program->symbols[i].name, name)) return &program->symbols[i];
  return NULL;
}

const struct symbol *program_function(const struct dpu_program_t *program, uint32_t address) {
  for (uint32_t i = 0; i < program->symbol_count; i++)
    if (address - program->symbols[i].address < program->symbols[i].size) return &program->symbols[i];
  return NULL;
}

void program_init_mram(const struct dpu_program_t *program, const struct dpu_t *dpu) {
  const Elf32_Phdr *segments = (const Elf32_Phdr *)(program->file + header_of(program)->e_phoff);
  for (int i = 0; i < header_of(program)->e_phnum; i++)
    if (segments[i].p_type == PT_LOAD && in_mram(segments[i].p_vaddr) && segments[i].p_filesz &&
        segments[i].p_vaddr - MRAM_AT + segments[i].p_filesz <= MRAM_BYTES) {
      uint32_t offset = segments[i].p_vaddr - MRAM_AT;
      memcpy(dpu->mram + offset, program->file + segments[i].p_offset, segments[i].p_filesz);
      written_mark(dpu, offset, segments[i].p_filesz);
    }
}

/* ---- a copy for one worker ---- */
static bool relocate(const struct dpu_program_t *program, struct copy *copy) {
  const Elf32_Shdr *sections = sections_of(program);
  uint32_t delta = (uint32_t)copy->moved;
  for (int i = 0; i < header_of(program)->e_shnum; i++) {
    const Elf32_Shdr *table = &sections[i];
    if (table->sh_type != SHT_RELA || table->sh_info >= header_of(program)->e_shnum) continue;
    const Elf32_Shdr *place = &sections[table->sh_info];
    if (!(place->sh_flags & SHF_ALLOC) || place->sh_type == SHT_NOBITS || in_mram(place->sh_addr)) continue;
    const Elf32_Sym *symbols = (const Elf32_Sym *)(program->file + sections[table->sh_link].sh_offset);
    uint32_t symbol_count = sections[table->sh_link].sh_size / sizeof *symbols;
    const Elf32_Rela *entries = (const Elf32_Rela *)(program->file + table->sh_offset);
    for (uint32_t e = 0; e < table->sh_size / sizeof *entries; e++) {
      uint32_t kind = ELF32_R_TYPE(entries[e].r_info), which = ELF32_R_SYM(entries[e].r_info);
      uint32_t at = entries[e].r_offset - program->link_base;
      if (kind == R_X86_64_NONE) continue;
      if (which >= symbol_count || at > program->image_bytes - 8) return false;
      uint32_t target = symbols[which].st_value + (uint32_t)entries[e].r_addend;
      bool moves = symbols[which].st_value >= program->link_base; /* not MRAM, not a plain number */
      uint32_t value;
      (void)target;
      memcpy(&value, copy->base + at, 4);
      if (kind == R_X86_64_32 || kind == R_X86_64_32S || kind == R_X86_64_64) {
        if (moves) value += delta;
      } else if (kind == R_X86_64_PC32 || kind == R_X86_64_PLT32) {
        if (!moves) value -= delta;
      } else {
        return false;
      }
      memcpy(copy->base + at, &value, 4);
    }
  }
  return true;
}

static dpu_error_t make_copy(struct dpu_program_t *program, struct copy *copy) {
  uint64_t stacks = (uint64_t)program->tasklets * (STACK_BYTES + GUARD_BYTES);
  copy->bytes = program->image_bytes + GUARD_BYTES + stacks;
  copy->base =
      mmap(NULL, copy->bytes, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
  if (copy->base == MAP_FAILED) {
    copy->base = NULL;
    return failed(DPU_ERR_SYSTEM, "no %llu bytes of address space below 2 GiB for %s", (unsigned long long)copy->bytes,
                  program->path);
  }
  copy->moved = (int64_t)(uintptr_t)copy->base - program->link_base;
  copy->wram = copy->base + (program->wram_at - program->link_base);
  const Elf32_Phdr *segments = (const Elf32_Phdr *)(program->file + header_of(program)->e_phoff);
  for (int i = 0; i < header_of(program)->e_phnum; i++) {
    const Elf32_Phdr *one = &segments[i];
    if (one->p_type != PT_LOAD || !one->p_filesz || in_mram(one->p_vaddr)) continue;
    uint32_t at = one->p_vaddr - program->link_base;
    if (at > program->image_bytes || program->image_bytes - at < one->p_filesz)
      return failed(DPU_ERR_ELF_INVALID_FILE, "%s has a segment at %#x, outside of its image", program->path,
                    one->p_vaddr);
    memcpy(copy->base + at, program->file + one->p_offset, one->p_filesz);
  }
  if (!relocate(program, copy))
    return failed(DPU_ERR_ELF_INVALID_FILE, "%s has a relocation that the loader does not know", program->path);
  memcpy(copy->base + (program->services_at - program->link_base), services, sizeof services);
  uint8_t *stack = copy->base + program->image_bytes;
  for (uint32_t i = 0; i <= program->tasklets; i++, stack += GUARD_BYTES + STACK_BYTES)
    if (stack + GUARD_BYTES <= copy->base + copy->bytes) mprotect(stack, GUARD_BYTES, PROT_NONE);
  copy->fresh = malloc(program->data_bytes + 1);
  if (!copy->fresh) return failed(DPU_ERR_SYSTEM, "no memory for %s", program->path);
  memcpy(copy->fresh, copy->wram, program->data_bytes);
  return DPU_OK;
}

dpu_error_t program_copy(struct dpu_program_t *program, uint32_t index, struct copy **out) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  dpu_error_t status = DPU_OK;
  pthread_mutex_lock(&lock);
  struct copy *copy = &program->copies[index];
  if (!copy->fresh) {
    status = make_copy(program, copy);
    if (status != DPU_OK && copy->base) {
      munmap(copy->base, copy->bytes);
      copy->base = NULL;
    }
  }
  pthread_mutex_unlock(&lock);
  *out = copy;
  return status;
}

/* ---- lines ---- */
void program_line(const struct dpu_program_t *program, uint32_t address, char *out, size_t room) {
  out[0] = 0;
  int file = memfd_create("dpu-program", 0);
  if (file < 0) return;
  if (write(file, program->file, program->file_bytes) == (ssize_t)program->file_bytes) {
    char command[96];
    snprintf(command, sizeof command, "addr2line -e /proc/%d/fd/%d %#x 2>/dev/null", getpid(), file, address);
    FILE *answer = popen(command, "r");
    if (answer) {
      if (!fgets(out, (int)room, answer)) out[0] = 0;
      pclose(answer);
    }
  }
  close(file);
  out[strcspn(out, "\n")] = 0;
  char *note = strstr(out, " (discriminator");
  if (note) *note = 0;
  if (!strncmp(out, "??", 2)) out[0] = 0;
}
