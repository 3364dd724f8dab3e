#include <alloc.h>
