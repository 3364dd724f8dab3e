// Drivers and their devices as the core sees them: opening, streams, events, copies, over the C ABI. No torch here.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/allocator.h"
#include "runtime/blocking.h"
#include "runtime/error.h"
#include "runtime/observer.h"
#include "runtime/recording.h"

namespace bringup {

// One driver: its function table, checked once, and how its failures become Errors.
class Driver {
 public:
  Driver(const bringup_driver* table, std::string name, bool acknowledges);

  const std::string name;
  bringup_driver api; // a private copy; functions beyond the driver's struct_size are NULL
  int32_t count = 0;
  bool asynchronous = false; // all seven stream and event functions are there
  bool kernels = false;      // it loads and launches kernels; compiling is Python's business
  bool graphs = false;       // it keeps and launches graphs of its own
  // A Python driver says of every call that it has begun. A Ctrl-C that is pending when C calls into Python is raised
  // before the callback's first line: then nothing was done, and the status is garbage.
  const bool acknowledges;
  static void acknowledge() noexcept;

  // Calls one of the driver's functions; throws Error with the driver's own words unless it returns BRINGUP_OK.
  template <class F>
  void call(const char* function, int32_t device, F&& work) const {
    const Entered entered(*this);
    const int32_t status = work();
    if (__builtin_expect(acknowledges && !entered.acknowledged(), 0)) interrupted(function, device);
    if (__builtin_expect(status != BRINGUP_OK, 0)) fail(status, function, device);
  }

  // The same for a function of the table that takes the device first, as most do; it may be missing.
  template <class... Takes, class... Given>
  void call(const char* name, int32_t (*function)(void*, int32_t, Takes...), int32_t device, Given... given) const {
    if (__builtin_expect(!function, 0)) missing(name);
    call(name, device, [&] { return function(api.self, device, given...); });
  }

  [[noreturn]] void missing(const char* function) const;

  // For calls whose failure nobody can act on: destroying, closing.
  template <class... Given>
  void call_quietly(Given... given) const noexcept {
    try {
      call(given...);
    } catch (const Error&) {
    }
  }

 private:
  // Calls nest: a Python driver may drop a tensor or an event while it works. Each has its own acknowledgement.
  class Entered {
   public:
    explicit Entered(const Driver& driver) : driver_(driver), outer_(driver.acknowledges && exchange(false)) {}
    ~Entered() {
      if (driver_.acknowledges) exchange(outer_);
    }
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;
    bool acknowledged() const;

   private:
    static bool exchange(bool value) noexcept;
    const Driver& driver_;
    const bool outer_;
  };

  [[noreturn]] void fail(int32_t status, const char* function, int32_t device) const;
  [[noreturn]] void interrupted(const char* function, int32_t device) const;
};

// One-shot marker in a stream; a driver without asynchrony gets a time stamp of the moment it was recorded.
struct Event {
  uint64_t handle = 0;
  uint64_t nanoseconds = 0;
  uint64_t recording = 0; // of a captured stream: the capture, and nothing else
  int32_t stream = 0;
  uint32_t life = 0; // of its device, when it was recorded: what is of an earlier life is over
};

class Device;

uint64_t host_nanoseconds(); // of a clock that never goes back

// A kernel that a driver has loaded, or a function of its library, and what a launch says of it. It lives as long as
// the process.
struct LoadedKernel {
  mutable uint64_t handle;
  std::string name;
  uint32_t block;
  uint64_t local_bytes;
  bringup_library_function function = nullptr; // with its context: called in place of the driver's launch
  void* context = nullptr;
  uint64_t id = 0;
  mutable uint32_t life = 0; // of the device for which the handle is good: one that was reset loads the kernel again
};
uint64_t keep_kernel(LoadedKernel kernel);                     // its id
const LoadedKernel& loaded_kernel(uint64_t id);                // throws Error for one that keep_kernel did not return
extern void (*load_kernel_again)(Device& device, uint64_t id); // calls Device::load_again; throws Error

// What a user calls an event: recorded again and again, by any thread, while others wait for what it was. Whoever uses
// a mark holds it; the last one destroys the driver's event.
class EventSlot {
 public:
  struct Mark {
    Mark(Device& device, Event event) : device(device), event(event) {}
    Mark(const Mark&) = delete;
    ~Mark();
    Device& device;
    const Event event;
  };
  std::shared_ptr<const Mark> get() const {
    std::lock_guard lock(mutex_);
    return mark_;
  }
  void record(Device& device, int32_t stream, uint32_t flags = 0); // bringup_event_flags

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Mark> mark_;
};

constexpr int32_t kBetweenDevices = BRINGUP_DEVICE_TO_DEVICE + 1;

// Something that a driver was asked for, as observers see it.
struct Work {
  enum class Kind : uint8_t { launch, copy, wait, charge, synchronize, relayout } kind;
  int32_t stream;
  uint64_t began;           // when the driver was called: Unix time in nanoseconds
  uint64_t correlation = 0; // of a launch
  const std::string* name = nullptr;
  uint64_t grid = 0, bytes = 0;
  double flops = 0;
  int32_t copy_kind = 0;                                 // bringup_copy_kind, or kBetweenDevices
  std::shared_ptr<const EventSlot::Mark> start{}, end{}; // around it, where the driver has no traces
};

class Device final : public MemoryBackend {
 public:
  Device(Driver& driver, int32_t local, int32_t index);

  Driver& driver;
  const int32_t local; // index inside the driver
  const int32_t index; // torch's index, over all drivers

  // ---- opening ----
  void ensure_open() {
    if (__builtin_expect(state_.load(std::memory_order_acquire) != State::open, 0)) open_slow();
  }
  bool is_open() const { return state_.load(std::memory_order_acquire) == State::open; }
  // False once the device is lost, the process is shutting down, or in a forked child: nothing is freed any more.
  bool usable() const { return state_.load(std::memory_order_relaxed) <= State::open; }
  bool lost() const { return state_.load(std::memory_order_acquire) == State::lost; }
  void lose(const std::string& why); // a driver says so: from now on every use throws
  void check_lost() {
    if (__builtin_expect(lost(), 0)) refuse(State::lost);
  }
  // Closes the device and forgets all of its state: the next use opens it as if it were the first. Throws where
  // something would be left pointing into its memory, and leaves the device as it was then.
  void reset();
  // Counts how often the device was reset.
  uint32_t life() const { return life_.load(std::memory_order_acquire); }
  std::atomic<int32_t> imported{0}; // storages of other processes' memory
  bool partitioned() const { return is_open() && spec_.partitions > 1; }
  const bringup_device_spec& spec() {
    ensure_open();
    return spec_;
  }
  std::string label() override;
  CachingAllocator& memory() { return *memory_; }
  // How a new storage lies, and the bytes it needs in every partition.
  bringup_placement placement_of_new(uint64_t nbytes) const;
  uint64_t physical_bytes(uint64_t nbytes, const bringup_placement& placement) const;

  // ---- streams: id 0 is the default; 1…32 normal, 33…64 high priority, created on first use ----
  static constexpr int32_t kPool = 32;
  static constexpr int32_t kStreams = 1 + 2 * kPool;
  int32_t stream_from_pool(bool high_priority);
  uint64_t stream_handle(int32_t stream);
  void check_stream(int32_t stream) const;
  // Called after work was queued that may still run when the call returns.
  void mark_busy(int32_t stream) {
    if (driver.asynchronous) streams_[stream].queued.fetch_add(1, std::memory_order_release);
  }
  bool busy(int32_t stream) const {
    const Stream& slot = streams_[stream];
    return slot.finished.load(std::memory_order_acquire) < slot.queued.load(std::memory_order_acquire);
  }
  // A failure of queued work, for the next use of the stream that its user sees.
  void keep_failure(int32_t stream, const Error& error) noexcept;
  // Throws what was kept of the stream's failures, and the one just met.
  void tell_failure(int32_t stream, const std::optional<Error>& met = std::nullopt);
  bool failed(int32_t stream) const { return streams_[stream].failed.load(std::memory_order_relaxed); }
  // The host may touch what the stream works on once this returns. Costs two loads when the stream is idle.
  void drain(int32_t stream) {
    if (__builtin_expect(capturing(stream), 0)) refuse_capture(stream, "work on the host");
    if (__builtin_expect(busy(stream), 0)) finish(stream);
  }
  void synchronize_stream(int32_t stream);
  void synchronize(); // waits for every stream, then throws the first failure with the others behind it
  bool query_stream(int32_t stream);

  // ---- capture: while a stream has a recording, launches and copies inside the device are written down, not run ----
  bool capturing(int32_t stream) const { return streams_[stream].captured.load(std::memory_order_acquire); }
  std::shared_ptr<Recording> recording(int32_t stream) const { // shared: another thread may end the capture meanwhile
    return __builtin_expect(capturing(stream), 0) ? recording_slowly(stream) : nullptr;
  }
  void begin_capture(const std::shared_ptr<Recording>& recording, int32_t stream);
  void end_capture(const std::shared_ptr<Recording>& recording) noexcept; // of all streams that have joined it
  // Error, also of the whole capture, if the stream is captured: the thing asked for cannot be.
  void refuse_capture(int32_t stream, const char* what);
  void replay(const Steps& steps, int32_t stream, const RandomState* states); // of the generators
  // The steps as a graph of the driver's own; nothing where it has none, or where a replay draws new random numbers.
  std::optional<uint64_t> make_graph(const Steps& steps, int32_t stream);
  void launch_graph(uint64_t graph, int32_t stream);
  void destroy_graph(uint64_t graph) noexcept;
  void finish(int32_t stream); // waits for work that runs, also on a stream that is captured meanwhile
  // Whose memory the stream's new tensors get: its own, or the capture's.
  int32_t memory_pool(int32_t stream) const {
    if (__builtin_expect(!capturing(stream), 1)) return stream;
    const auto captured = recording(stream);
    return captured ? captured->memory_pool : stream;
  }

  // ---- events ----
  Event record(int32_t stream, uint32_t flags = 0); // bringup_event_flags
  bool query(const Event& event);
  void wait(const Event& event);                                       // the calling thread
  void wait(const Event& event, Device& waiting, int32_t wait_stream); // a stream, of any driver
  double elapsed_ms(const Event& start, const Event& end);
  void destroy(const Event& event);

  // ---- work ----
  void copy(uint64_t dst, uint64_t src, uint64_t nbytes, bringup_copy_kind kind, int32_t stream,
            const bringup_placement* placement = nullptr);
  void copy_from(Device& source, uint64_t dst, uint64_t src, uint64_t nbytes, int32_t stream); // one that it reaches
  void relayout(uint64_t dst, const bringup_placement& dst_placement, uint64_t src,
                const bringup_placement& src_placement, uint64_t nbytes, int32_t stream);
  // Compiled kernels. A device whose library is the CPU's code has no use for them; over partitions they need relayout.
  bool runs_kernels() {
    return driver.kernels && !spec().host_library && (spec().partitions <= 1 || driver.api.relayout);
  }
  uint64_t load_kernel(const void* binary, uint64_t nbytes, LoadedKernel kernel); // its id; `name` is the entry
  void load_again(const LoadedKernel& kernel, const void* binary, uint64_t nbytes, const char* entry);
  // Fills in the stream and, where the caller does not ask, `finished`.
  void launch(const LoadedKernel& kernel, bringup_launch& work, int32_t stream);
  // Bytes that nothing occupies, and all, of all partitions together.
  std::pair<uint64_t, uint64_t> memory_info();
  // Whether bytes come from another device without passing through the host.
  bool reaches(Device& peer);
  uint64_t clock();
  void charge(int32_t stream, int32_t dtype, double flops, double bytes);
  void host_function(int32_t stream, void (*function)(void*), void* argument);

  // ---- for the allocator ----
  uint64_t raw_alloc(uint64_t nbytes) override;
  void raw_free(uint64_t address) override;
  uint64_t raw_memory() override;
  uint64_t record_event(int32_t stream) override;
  bool query_event(uint64_t event) override;
  bool wait_event(uint64_t event, int32_t stream) noexcept override;
  bool finish_work(int32_t stream) noexcept override;
  void destroy_event(uint64_t event) override;

 private:
  friend class Registry;
  // The order matters: usable() means "not later than open".
  enum class State { unopened, opening, open, lost, forked, closed };
  struct Stream {
    std::atomic<uint64_t> handle{0};
    std::atomic<bool> created{false};
    std::atomic<uint64_t> queued{0};   // calls that may have left work behind
    std::atomic<uint64_t> finished{0}; // of those, how many are known to be done: it never runs ahead of the truth
    std::atomic<bool> failed{false};   // there is a `failure`
    std::atomic<bool> captured{false}; // there is a `recording`
    mutable std::mutex mutex;          // of what follows, and of creating the stream
    std::optional<Error> failure;      // of queued work, met by a wait that the user does not see
    std::shared_ptr<Recording> recording;
    struct QuietWait { // one that the user does not see: what it takes from the driver, it keeps before it ends
      uint64_t event;
      int asking = 0; // users' waits that ask for the event just now: it is not destroyed meanwhile
    };
    std::map<uint64_t, QuietWait> quiet; // by their number
    uint64_t last_quiet = 0;
    std::condition_variable quiet_changed;
    std::atomic<uint32_t> quiet_count{0};
  };

  using Mark = std::shared_ptr<const EventSlot::Mark>;
  template <class F>
  void move_bytes(Work::Kind work, uint64_t nbytes, int32_t kind, int32_t stream, F&& queue); // and tells observers
  Mark mark_for_observers(int32_t stream, uint64_t began); // nothing where nobody looks at it
  void observe(Work work);                                 // tells the observers
  void observe(const bringup_launch& launch, const std::string& name, int32_t stream, uint64_t began, Mark start);
  void open_slow();
  [[noreturn]] void refuse(State state);
  Event record_now(int32_t stream, uint32_t flags = 0);
  std::optional<Error> wait_for(const Event& event);
  void finish_until(int32_t stream, uint64_t seen);
  // Returns when what quiet waits may have taken from the driver is kept.
  void await_quiet_waits(int32_t stream);
  std::shared_ptr<Recording> recording_slowly(int32_t stream) const;
  std::shared_ptr<Recording> join_capture(const std::shared_ptr<Recording>& recording, int32_t stream);
  static void refuse_captured(const Event& event);
  bool wait_in_capture(const Event& event, Device& waiting, int32_t wait_stream);

  std::atomic<State> state_{State::unopened};
  std::atomic<uint32_t> life_{0};
  std::mutex open_mutex_;
  std::condition_variable opened_;
  bringup_device_spec spec_{};
  std::string lost_; // why; written before the state
  std::unique_ptr<CachingAllocator> memory_;
  std::array<Stream, kStreams> streams_;
  std::atomic<uint32_t> next_normal_{0}, next_high_{0};
};

// All drivers and devices of this process. Filled once at activation, constant afterwards.
class Registry {
 public:
  static Registry& get();

  // Returns the first device index of the new driver.
  // `visible`: which of the driver's devices, in which order; all of them without.
  int32_t add(const bringup_driver* table, const std::string& name, bool acknowledges = false,
              const std::optional<std::vector<int32_t>>& visible = std::nullopt);
  int32_t device_count() const noexcept { return static_cast<int32_t>(devices_.size()); }
  Device& device(int32_t index) {
    if (__builtin_expect(index < 0 || index >= device_count(), 0)) bad_index(index);
    return *devices_[index];
  }
  // A driver's device, by its number there; nullptr if it is not visible.
  Device* find(const Driver& driver, int32_t local);
  // The device whose allocator holds this address, or nullptr.
  Device* find(uint64_t address);
  // Waits for all work, and writes failures that nobody has heard of to stderr: there is nobody left to throw them at.
  void tell_unheard_failures();
  // No driver is called after this.
  void shut_down();
  bool in_bad_fork() const { return forked_.load(std::memory_order_relaxed); }
  // Set with the type's name ("sim", "accel") so that messages speak the user's language.
  std::string type_name = "privateuseone";

 private:
  Registry();
  [[noreturn]] void bad_index(int32_t index) const;
  static void after_fork_in_child();

  std::vector<std::unique_ptr<Driver>> drivers_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::atomic<bool> forked_{false};
};

// What has to be done once in this process before any device is open: whoever opens one waits for it, without the GIL.
class FirstUse {
 public:
  static FirstUse& get();
  void set(void (*hook)()); // which throws Error: then it is tried again with the next use
  void ensure() {
    if (__builtin_expect(!done_.load(std::memory_order_acquire), 0)) run();
  }

 private:
  void run();
  std::atomic<bool> done_{true};
  std::mutex mutex_;
  void (*hook_)() = nullptr;
  std::atomic<std::thread::id> runner_{}; // nobody, or the thread that is inside the hook: it may open devices
};

} // namespace bringup
