/* What both sides of the join know. */
#ifndef JOIN_H
#define JOIN_H

#include <stdint.h>

#define ROWS 256

struct row {
  uint32_t key, value;
};

#endif
