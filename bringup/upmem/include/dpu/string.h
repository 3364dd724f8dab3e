#ifndef BRINGUP_DPU_STRING_H
#define BRINGUP_DPU_STRING_H

#include <stddef.h>

void *memcpy(void *to, const void *from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int value, size_t bytes);
int memcmp(const void *a, const void *b, size_t bytes);
size_t strlen(const char *text);
int strcmp(const char *a, const char *b);
char *strcpy(char *to, const char *from);
int strncmp(const char *a, const char *b, size_t most);
char *strncpy(char *to, const char *from, size_t bytes);
char *strcat(char *to, const char *from);
char *strchr(const char *text, int wanted);

#endif
