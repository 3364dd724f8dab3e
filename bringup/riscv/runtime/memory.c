/* What compilers call without being asked, also where there is no libc. They must not recognise their own functions in
   these loops and call them: hence STEP. */
#include <stddef.h>

#define STEP __asm__ volatile("")

void *memset(void *to, int value, size_t count) {
  unsigned char *at = to;
  const size_t word = (size_t)-1 / 255 * (unsigned char)value;
  for (; count && (size_t)at % sizeof word; count--) {
    *at++ = (unsigned char)value;
    STEP;
  }
  for (; count >= sizeof word; count -= sizeof word, at += sizeof word) {
    *(size_t *)(void *)at = word;
    STEP;
  }
  while (count--) {
    *at++ = (unsigned char)value;
    STEP;
  }
  return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t count) {
  unsigned char *at = to;
  const unsigned char *source = from;
  const size_t word = sizeof(size_t);
  if ((size_t)at % word == (size_t)source % word) {
    for (; count && (size_t)at % word; count--) {
      *at++ = *source++;
      STEP;
    }
    for (; count >= word; count -= word, at += word, source += word) {
      *(size_t *)(void *)at = *(const size_t *)(const void *)source;
      STEP;
    }
  }
  while (count--) {
    *at++ = *source++;
    STEP;
  }
  return to;
}

void *memmove(void *to, const void *from, size_t count) {
  unsigned char *at = to;
  const unsigned char *source = from;
  if (at <= source || at >= source + count) return memcpy(to, from, count);
  while (count--) {
    at[count] = source[count];
    STEP;
  }
  return to;
}

int memcmp(const void *a, const void *b, size_t count) {
  const unsigned char *one = a, *two = b;
  for (; count--; one++, two++) {
    if (*one != *two) return *one < *two ? -1 : 1;
    STEP;
  }
  return 0;
}
