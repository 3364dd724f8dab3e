#include <dpuruntime_builtins.h>
