#include <defs.h>
#undef assert
#undef static_assert
#define static_assert _Static_assert
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
void __bringup_assert_failed(const char *condition, const char *file, int line) __attribute__((noreturn));
#define assert(condition) ((condition) ? (void)0 : __bringup_assert_failed(#condition, __FILE__, __LINE__))
#endif
