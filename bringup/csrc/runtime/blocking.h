// Where a thread waits: Python's GIL is let go, and the stress programs let other threads go first. No torch here.
#pragma once

namespace bringup {

// The runtime blocks in a few places; a thread that holds Python's GIL must let go of it there, because the work it
// waits for may be a Python driver. The Python binding fills these in; without it they do nothing.
struct BlockingHooks {
  void* (*enter)() = nullptr;
  void (*leave)(void*) = nullptr;
};
inline BlockingHooks blocking_hooks;

// Made and ended outside every mutex: the GIL is never taken with one in hand.
class Blocking {
 public:
  Blocking() : token_(blocking_hooks.enter ? blocking_hooks.enter() : nullptr) {}
  ~Blocking() {
    if (token_) blocking_hooks.leave(token_);
  }
  Blocking(const Blocking&) = delete;
  Blocking& operator=(const Blocking&) = delete;

 private:
  void* token_;
};

// Between two steps that another thread may come between. Only tests/sanitize fill it in.
#ifdef BRINGUP_YIELD_POINTS
void yield_point() noexcept;
#else
inline void yield_point() noexcept {}
#endif

} // namespace bringup
