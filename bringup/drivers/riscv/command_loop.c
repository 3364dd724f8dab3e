/* The program of a guest: it sleeps until the host has written a command, calls the kernel, and sleeps again. */
#include <stdint.h>

enum { ARGUMENTS = 4096 };

typedef void kernel(const uint64_t *args, int64_t begin, int64_t end, int64_t *report);

/* Written by the host while the guest sleeps; guest.py packs the same fields. */
struct command {
  kernel *entry;
  int64_t begin, end;
  int64_t report[3];
  uint64_t args[ARGUMENTS];
};

struct command bringup_command;

int main(void) {
  for (;;) {
    __asm__ volatile("wfi" ::: "memory");
    __asm__ volatile("fence.i" ::: "memory"); /* the kernel may be new */
    struct command *command = &bringup_command;
    command->entry(command->args, command->begin, command->end, command->report);
  }
}
