/* printf of a DPU: into its log, which the host reads. */
#ifndef BRINGUP_DPU_STDIO_H
#define BRINGUP_DPU_STDIO_H

#include <stdarg.h>
#include <stddef.h>

int printf(const char *format, ...) __attribute__((format(printf, 1, 2)));
int puts(const char *text);
int putchar(int character);

#endif
