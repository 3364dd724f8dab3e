// See placed_launch.h.
#include "placement/placed_launch.h"

#include <mutex>
#include <numeric>

#include "placement/operands.h"
#include "placement/spread.h"
#include "pytorch/context.h"

namespace bringup {

namespace {

constexpr bringup_placement kSingle{BRINGUP_SINGLE, 0, 0, 0}, kReplicate{BRINGUP_REPLICATE, 0, 0, 0};
// What sharing a kernel out has to save, in bytes: a small tensor is used again as one that all partitions have.
constexpr double kSharing = 4096;
// Up to so many bytes a kernel that cannot be shared out runs everywhere, so that its results lie everywhere.
constexpr double kEverywhere = 65536;

struct Argument { // an address of one launch
  Operand* operand;
  uint64_t offset;
  bool written;
  bringup_placement wanted{};
  int64_t shift = 0; // bytes from one partition's address to the next
};

struct Way {
  double cost = -1; // < 0: not possible
  const SpreadAxis* axis = nullptr;
  uint64_t rows = 0; // of a partition
  bool everywhere = false;
};

class PlacedPlan {
 public:
  PlacedPlan(const char* label, Device& device, const Plan& plan, const Given& given)
      : label_(label), device_(device), plan_(plan), given_(given), stream_(current_stream(given.device)) {
    // A temporary that is used in parts holds many things, one after the other: it stays in one piece.
    in_parts_.assign(plan.temporaries.size(), false);
    for (const KernelLaunch& kernel : plan.launches)
      for (const Patch& patch : kernel.patches)
        if (patch.source == Source::temporary && patch.extra != 0) in_parts_[patch.slot] = true;
    temporaries_.assign(plan.temporaries.size(), nullptr);
  }

  void run() {
    for (const KernelLaunch& kernel : plan_.launches)
      if (kernel.units > 0) launch(kernel);
    for (Operand& operand : operands_) operand.put_back();
  }

 private:
  Operand* operand_of(const Patch& patch) {
    if (patch.source == Source::temporary) {
      Operand*& known = temporaries_[patch.slot];
      if (!known)
        known = &operands_.emplace_back(device_, stream_, nullptr, plan_.temporaries[patch.slot], true,
                                        in_parts_[patch.slot]);
      return known;
    }
    const bool output = patch.source == Source::output;
    const at::Tensor& tensor = output ? given_.outputs[patch.slot] : *given_.tensors[patch.slot];
    c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    for (Operand& known : operands_)
      if (known.storage == storage) return &known;
    const bool fresh = output && tensor.use_count() == 1 && tensor.storage().use_count() == 1;
    return &operands_.emplace_back(device_, stream_, storage, storage->nbytes(), fresh, false);
  }

  uint64_t offset_of(const Patch& patch) const {
    if (patch.source == Source::temporary) return patch.extra;
    const at::Tensor& tensor =
        patch.source == Source::output ? given_.outputs[patch.slot] : *given_.tensors[patch.slot];
    return static_cast<uint64_t>(tensor.storage_offset()) * tensor.itemsize() + patch.extra;
  }

  // ---- what a way would cost ----

  double moves(const std::vector<Argument>& arguments) const {
    double total = 0;
    for (size_t i = 0; i < arguments.size(); ++i) {
      bool first = true;
      for (size_t j = 0; j < arguments.size(); ++j) { // a storage that is given twice lies in one way
        if (arguments[j].operand != arguments[i].operand) continue;
        if (!same(arguments[j].wanted, arguments[i].wanted)) return -1;
        first &= j >= i;
      }
      if (!first) continue;
      const double cost = arguments[i].operand->cost(arguments[i].wanted, written(arguments, arguments[i].operand));
      if (cost < 0) return -1;
      total += cost;
    }
    return total;
  }

  static bool written(const std::vector<Argument>& arguments, const Operand* operand) {
    for (const Argument& argument : arguments)
      if (argument.operand == operand && argument.written) return true;
    return false;
  }

  // Where the operands have to lie for so many rows a partition; false: they cannot.
  bool share_out(const SpreadAxis& axis, uint64_t rows, std::vector<Argument>& arguments) const {
    const uint64_t partitions = device_.spec().partitions, rest = axis.extent % rows;
    if (rows == 0 || (axis.extent + rows - 1) / rows > partitions || rows < axis.least || rows > axis.most ||
        (rest && rest < axis.least))
      return false;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto [step, confined] = axis.accesses[i];
      Argument& argument = arguments[i];
      const bringup_placement shard{BRINGUP_SHARD, 0, rows * static_cast<uint64_t>(step), 0};
      const bool can = confined && argument.offset == 0 && shard.block % 8 == 0;
      const bool replicated = !argument.operand->fresh() && argument.operand->home().kind == BRINGUP_REPLICATE;
      if (argument.written && !can) return false;
      const bool here = can && (argument.written || !replicated);
      argument.wanted = here ? shard : kReplicate;
      argument.shift = here ? 0 : static_cast<int64_t>(rows) * step;
    }
    return true;
  }

  Way cheapest(const KernelLaunch& kernel, std::vector<Argument>& arguments) const {
    const double work = kernel.bytes + kernel.flops;
    Way best;
    auto consider = [&](const Way& way) {
      if (way.cost >= 0 && (best.cost < 0 || way.cost < best.cost)) best = way;
    };
    for (Argument& argument : arguments) argument.wanted = kReplicate, argument.shift = 0;
    const double everywhere = moves(arguments);
    if (kernel.spread && everywhere >= 0)
      consider({everywhere + work + (work > kEverywhere ? work : 0), nullptr, 0, true});
    if (kernel.spread) {
      const uint64_t partitions = device_.spec().partitions;
      for (const auto& axis : kernel.spread->axes) {
        if (axis->extent < 2) continue;
        uint64_t multiple = 1;
        std::vector<uint64_t> tries;
        for (size_t i = 0; i < arguments.size(); ++i) {
          const auto [step, confined] = axis->accesses[i];
          if (!confined) continue;
          const auto ustep = static_cast<uint64_t>(step);
          multiple = std::lcm(multiple, 8 / std::gcd<uint64_t>(ustep, 8));
          const bringup_placement& home = arguments[i].operand->home();
          if (!arguments[i].operand->fresh() && home.kind == BRINGUP_SHARD && home.block % ustep == 0)
            tries.push_back(home.block / ustep);
        }
        const uint64_t even = (axis->extent + partitions - 1) / partitions;
        tries.push_back((even + multiple - 1) / multiple * multiple);
        for (uint64_t rows : tries) {
          if (!share_out(*axis, rows, arguments)) continue;
          const double cost = moves(arguments), share = static_cast<double>(rows) / static_cast<double>(axis->extent);
          if (cost >= 0) consider({cost + kSharing + work * std::min(share, 1.0), axis.get(), rows, false});
        }
      }
    }
    for (Argument& argument : arguments) argument.wanted = kSingle, argument.shift = 0;
    consider({moves(arguments) + work + (work > kEverywhere ? 0 : kSharing), nullptr, 0, false});
    if (best.axis) {
      share_out(*best.axis, best.rows, arguments);
    } else if (best.everywhere) {
      for (Argument& argument : arguments) argument.wanted = kReplicate;
    }
    return best;
  }

  // ---- launching ----

  void launch(const KernelLaunch& kernel) {
    std::vector<uint64_t> args(kernel.args.begin(), kernel.args.end());
    std::vector<Argument> arguments;
    for (const Patch& patch : kernel.patches) {
      if (patch.position < kernel.address_count) {
        const bool written = !kernel.spread || kernel.spread->written[patch.position];
        arguments.push_back({operand_of(patch), offset_of(patch), written});
      } else {
        args[patch.position] = number_argument(patch, given_);
      }
    }
    TORCH_INTERNAL_ASSERT(arguments.size() == kernel.address_count, label_, ": its plan leaves an address open");
    const Way way = cheapest(kernel, arguments);
    for (size_t i = 0; i < arguments.size(); ++i) {
      Argument& argument = arguments[i];
      const uint64_t base = argument.operand->in_form(argument.wanted, written(arguments, argument.operand));
      args[i] = base == 0 ? 0 : base + argument.offset;
    }
    uint32_t finished = 0;
    bringup_launch work = described(kernel, args, &finished);
    std::vector<uint64_t> shares, grid;
    if (way.axis || way.everywhere) {
      work.partition_count = device_.spec().partitions;
      for (uint64_t p = 0; p < work.partition_count; ++p) {
        uint64_t units = kernel.units;
        if (way.axis) {
          const uint64_t begin = std::min(way.axis->extent, p * way.rows);
          const uint64_t rows = std::min(way.rows, way.axis->extent - begin);
          args[way.axis->position] = rows;
          units = rows ? way.axis->units(rows) : 0;
        }
        grid.push_back(units);
        shares.insert(shares.end(), args.begin(), args.end());
        for (size_t i = 0; way.axis && i < arguments.size(); ++i)
          if (args[i]) args[i] += arguments[i].shift;
      }
      work.partition_args = shares.data();
      work.partition_grid = grid.data();
      work.args = shares.data();
    }
    queue(label_, device_, kernel, work, stream_);
  }

  const char* label_;
  Device& device_;
  const Plan& plan_;
  const Given& given_;
  const int32_t stream_;
  std::deque<Operand> operands_;
  std::vector<Operand*> temporaries_;
  std::vector<bool> in_parts_;
};

} // namespace

void launch_over_partitions(const char* label, Device& device, const Plan& plan, const Given& given) {
  if (device.recording(current_stream(given.device)))
    device.refuse_capture(current_stream(given.device), "a kernel on partitioned memory");
  // A launch and its moves are queued as one: between the moves of another thread's launch they would undo its work on
  // neighbours in a storage. Python drivers take the GIL under this mutex, so nobody waits for it with the GIL in hand.
  static auto* queueing = new std::recursive_mutex();
  std::unique_lock lock(*queueing, std::try_to_lock);
  if (!lock) {
    const Blocking blocking;
    lock.lock();
  }
  translated([&] { PlacedPlan(label, device, plan, given).run(); });
}

} // namespace bringup
