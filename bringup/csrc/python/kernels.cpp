// Compiled kernels as Python sees them: loading, plans, and the resolver that makes a plan for a new signature.
#include <ATen/TensorGeometry.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <set>

#include "aten/kernel_call.h"
#include "aten/launch.h"
#include "aten/own_kernels.h"
#include "aten/route.h"
#include "placement/operands.h"
#include "placement/spread.h"
#include "python/bindings.h"
#include "pytorch/allocator.h"
#include "runtime/philox.h"

namespace py = pybind11;

namespace bringup {
namespace {

// ---- plans from Python ----

KernelLaunch launch_from(const py::handle& description) {
  const auto parts = description.cast<py::tuple>();
  const auto [kernel, units, flops, bytes, args] =
      parts[py::slice(0, 5, 1)].cast<std::tuple<uint64_t, uint64_t, double, double, py::sequence>>();
  const LoadedKernel* loaded = translated([&] { return &loaded_kernel(kernel); });
  KernelLaunch launch{loaded, units, flops, bytes, {}, 0, {}, nullptr};
  if (parts.size() > 5) launch.spread = spread_from(parts[5]);
  bool addresses = true;
  for (const py::handle& item : args) {
    const auto [kind, a, b] = item.cast<std::tuple<int, py::object, int64_t>>();
    TORCH_CHECK_VALUE(kind >= 0 && kind <= static_cast<int>(Source::offset), "make_plan: there is no argument kind ",
                      kind);
    const auto source = static_cast<Source>(kind);
    const uint64_t value = PyLong_AsUnsignedLongLongMask(a.ptr());
    if (PyErr_Occurred()) throw py::error_already_set();
    addresses &= source == Source::tensor || source == Source::output || source == Source::temporary;
    launch.address_count += addresses;
    if (source != Source::immediate)
      launch.patches.push_back({static_cast<uint32_t>(launch.args.size()), source, static_cast<uint32_t>(value), b});
    launch.args.push_back(source == Source::immediate ? value : 0);
  }
  return launch;
}

OutputSpec output_from(const py::handle& description) {
  OutputSpec spec;
  if (description.is_none()) return spec;
  const auto parts = description.cast<py::tuple>();
  TORCH_CHECK_VALUE(parts.size() == 1 || parts.size() == 3,
                    "make_plan: an output is (scalar type, sizes, strides), (tensor slot,) or None");
  if (parts.size() == 1) {
    spec.slot = parts[0].cast<int>();
    return spec;
  }
  spec.dtype = static_cast<c10::ScalarType>(parts[0].cast<int>());
  spec.sizes = parts[1].cast<std::vector<int64_t>>();
  spec.strides = parts[2].cast<std::vector<int64_t>>();
  TORCH_CHECK_VALUE(spec.sizes.size() == spec.strides.size() && spec.dtype < c10::ScalarType::Undefined,
                    "make_plan: an output of ", spec.sizes.size(), " sizes and ", spec.strides.size(), " strides");
  return spec;
}

std::shared_ptr<Plan> make_plan(const py::sequence& launches, std::vector<uint64_t> temporaries,
                                const py::sequence& guards, int flags, const std::optional<py::sequence>& outputs,
                                std::string reason) {
  auto plan = std::make_shared<Plan>();
  for (const py::handle& launch : launches) plan->launches.push_back(launch_from(launch));
  plan->temporaries = std::move(temporaries);
  for (const py::handle& guard : guards) {
    const auto [slot, op, value] = guard.cast<std::tuple<uint32_t, int, py::object>>();
    TORCH_CHECK_VALUE(op >= 0 && op <= static_cast<int>(Guard::Relation::le), "make_plan: there is no guard ", op);
    plan->guards.push_back(
        {slot, static_cast<Guard::Relation>(op), Number::of(torch::jit::toIValue(value, c10::NumberType::get()))});
  }
  plan->flags = flags;
  plan->reason = std::move(reason);
  if (outputs) {
    plan->outputs.emplace();
    for (const py::handle& output : *outputs) plan->outputs->push_back(output_from(output));
  }
  return plan;
}

// ---- calls for Python ----

py::tuple ints(c10::ArrayRef<int64_t> values) { return py::tuple(py::cast(values.vec())); }

class Describer { // numbers slots as Signature does
 public:
  explicit Describer(const PlanRequest& request) : call_(request.call), resizes_(request.resizes) {}

  py::object describe(const c10::IValue& value, ArgumentRules::Kind kind) {
    using Kind = ArgumentRules::Kind;
    if (value.isNone() || kind == Kind::generator) return py::none();
    if (value.isTensor()) return tensor(value.toTensor());
    if (value.isList()) {
      py::list items;
      for (const c10::IValue& item : value.toListRef()) items.append(describe(item, kind));
      return items;
    }
    if (kind == Kind::number) {
      const size_t slot = next_number_++;
      return py::make_tuple("s", slot, py::none(), number(call_.numbers[slot]), 0);
    }
    return torch::jit::toPyObject(value);
  }

 private:
  static py::object number(const Number& value) { return torch::jit::toPyObject(value.scalar()); }
  static py::object device_tensor(size_t slot, int dtype, at::IntArrayRef sizes, at::IntArrayRef strides, int flags) {
    const int contiguous = at::geometry_is_contiguous(sizes, strides) ? 2 : 0;
    return py::make_tuple("t", slot, dtype, ints(sizes), ints(strides), flags | contiguous);
  }
  py::object tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return py::none();
    const int dtype = static_cast<int>(tensor.scalar_type());
    int flags = tensor.unsafeGetTensorImpl()->is_wrapped_number() ? 1 : 0;
    if (tensor.device().type() == kDeviceType) {
      const size_t slot = next_tensor_++;
      flags |= static_cast<int>(placement_of(tensor.storage().unsafeGetStorageImpl()).kind) << 8;
      for (const auto& [resized, spec] : resizes_)
        if (resized == slot) return device_tensor(slot, dtype, spec.sizes, spec.strides, flags);
      return device_tensor(slot, dtype, tensor.sizes(), tensor.strides(), flags);
    }
    const size_t slot = next_number_++;
    return py::make_tuple("n", slot, dtype, number(call_.numbers[slot]), flags);
  }

  const Signature& call_;
  const std::vector<BoundPlan::Resize>& resizes_;
  size_t next_tensor_ = 0, next_number_ = 0;
};

py::object outputs_for_python(const std::vector<BoundPlan::Result>* results) {
  if (!results) return py::none();
  py::list outputs;
  for (const auto& result : *results) {
    if (result.constant) outputs.append(py::none());
    for (const OutputSpec& spec : result.tensors) {
      const int dtype = static_cast<int>(spec.dtype);
      outputs.append(spec.slot >= 0 ? py::object(py::make_tuple("arg", spec.slot))
                                    : py::object(py::make_tuple("new", dtype, ints(spec.sizes), ints(spec.strides))));
    }
  }
  return outputs;
}

// Runs Python inside an op. Its exceptions become torch's own kind, which travels from autograd's threads as well.
template <class F>
auto in_python(F&& work) -> decltype(work()) {
  py::gil_scoped_acquire gil;
  try {
    return work();
  } catch (py::error_already_set& error) {
    error.restore();
    python_error carried;
    carried.persist();
    throw carried;
  }
}

void resolve_with(py::object function) {
  auto* kept = new py::object(std::move(function)); // never freed: the last call may be while the interpreter ends
  set_kernel_resolver([kept](const PlanRequest& request) -> std::shared_ptr<const Plan> {
    return in_python([&] {
      Describer describer(request);
      const auto& rules = request.op.rules.arguments;
      py::list arguments;
      for (size_t i = 0; i < rules.size(); ++i)
        arguments.append(describer.describe(request.stack[request.call.first + i], rules[i].kind));
      const py::object plan = (*kept)(request.op.record.name, static_cast<int>(request.call.device), arguments,
                                      outputs_for_python(request.results));
      TORCH_CHECK_TYPE(plan.is_none() || py::isinstance<Plan>(plan), "the kernel resolver returns a Plan or None");
      return plan.is_none() ? nullptr : plan.cast<std::shared_ptr<Plan>>();
    });
  });
}

// An op that a Python function makes of other ops.
struct ComposedOp final : c10::OperatorKernel {
  ComposedOp(std::string name, py::object function)
      : name(std::move(name)), function(new py::object(std::move(function))) {}
  const std::string name;
  py::object* function; // never freed: the last call may be while the interpreter ends

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const NamedWork named(name.c_str()); // a number that cannot be read back during a capture is reported by it
    const auto &arguments = op.schema().arguments(), &returns = op.schema().returns();
    in_python([&] {
      py::list positional;
      py::dict named_arguments;
      for (size_t i = 0; i < arguments.size(); ++i) {
        const c10::IValue& value = (*stack)[stack->size() - arguments.size() + i];
        const bool is_dtype = arguments[i].real_type()->kind() == c10::TypeKind::ScalarTypeType && value.isInt();
        py::object given = is_dtype ? py::cast(static_cast<c10::ScalarType>(value.toInt())) //
                                    : torch::jit::toPyObject(value);
        if (arguments[i].kwarg_only())
          named_arguments[arguments[i].name().c_str()] = given;
        else
          positional.append(given);
      }
      torch::jit::drop(*stack, arguments.size());
      const py::object result = (*function)(*positional, **named_arguments);
      if (returns.size() == 1) stack->push_back(torch::jit::toIValue(result, returns[0].real_type()));
      for (size_t i = 0; returns.size() > 1 && i < returns.size(); ++i)
        stack->push_back(torch::jit::toIValue(result[py::int_(i)], returns[i].real_type()));
    });
  }
};

void compose_ops(const std::map<std::string, py::object>& functions) {
  for (const auto& [overload, function] : functions) {
    const c10::OperatorHandle op = find_op(overload);
    if (has_foreign_kernel(op)) continue; // what a user registers counts
    auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<ComposedOp>(overload, function));
    replace_own_kernel(op, std::move(kernel), "native");
  }
}

void ask_about_fallbacks(py::object function) {
  auto* kept = new py::object(std::move(function)); // never freed: the last fallback may be while the interpreter ends
  set_fallback_hook([kept](const std::string& op, int device, const std::string& why) {
    if (Py_IsInitialized()) in_python([&] { (*kept)(op, device, why); });
  });
}

void load_again_with(py::object function) {
  static const auto* again = new py::object(std::move(function)); // never freed: threads may launch to the end
  load_kernel_again = [](Device& device, uint64_t id) {
    py::gil_scoped_acquire gil;
    try {
      (*again)(device.index, id);
    } catch (const py::error_already_set& error) {
      throw Error(BRINGUP_ERROR, device.label() + " was reset, and a kernel cannot be loaded again: " + error.what());
    }
  };
}

void count_flops_with(py::object function) {
  auto* kept = new py::object(std::move(function)); // never freed: the last op may be while the interpreter ends
  set_flops_of([kept](const std::string& op, const AllSizes& in, const AllSizes& out, bool transposed) {
    return Py_IsInitialized() ? in_python([&] { return (*kept)(op, in, out, transposed).cast<double>(); }) : 0.0;
  });
}

py::object* first_use = nullptr; // never freed

void call_first_use() {
  py::gil_scoped_acquire gil;
  try {
    register_sparse_ops(); // 300 in 10 ms, which `import torch` need not pay
    (*first_use)();
  } catch (const py::error_already_set& error) {
    throw Error(BRINGUP_ERROR, std::string("bringup could not register its kernels: ") + error.what());
  }
}

} // namespace

void bind_kernels(py::module_& module) {
  py::class_<Plan, std::shared_ptr<Plan>>(module, "Plan");
  // The codes of make_plan, by the order of Source and Relation, so that Python has no copy of them.
  module.attr("SOURCES") = py::make_tuple("immediate", "tensor", "output", "temporary", "number", "seed", "offset");
  module.attr("RELATIONS") = py::make_tuple("eq", "ne", "lt", "ge", "gt", "le");
  module.attr("PLAN_FLAGS") = std::vector<int>{Plan::kPointwise, Plan::kRandom, Plan::kRefused, Plan::kApart};
  module.attr("WRAP") = kWrap;
  module.def(
      "load_kernel",
      [](int device, const py::bytes& binary, std::string entry, uint32_t block, uint64_t local_bytes) {
        char* data;
        Py_ssize_t nbytes;
        PyBytes_AsStringAndSize(binary.ptr(), &data, &nbytes);
        py::gil_scoped_release no_gil;
        LoadedKernel kernel{0, std::move(entry), block, local_bytes};
        return translated([&] { return device_at(device).load_kernel(data, nbytes, std::move(kernel)); });
      },
      py::arg("device"), py::arg("binary"), py::arg("entry"), py::arg("block") = 0, py::arg("local_bytes") = 0);
  module.def(
      "load_kernel_again",
      [](int device, uint64_t kernel, const std::string& binary, const std::string& entry) {
        py::gil_scoped_release no_gil;
        translated(
            [&] { device_at(device).load_again(loaded_kernel(kernel), binary.data(), binary.size(), entry.c_str()); });
      },
      py::arg("device"), py::arg("kernel"), py::arg("binary"), py::arg("entry"));
  module.def("load_again_with", &load_again_with);
  module.def("library_kernel", [](std::string name, uintptr_t function, uintptr_t context) {
    return keep_kernel({0, std::move(name), 0, 0, reinterpret_cast<bringup_library_function>(function),
                        reinterpret_cast<void*>(context)});
  });
  module.def("make_plan", &make_plan, py::arg("launches"), py::arg("temporaries"), py::arg("guards"), py::arg("flags"),
             py::arg("outputs") = py::none(), py::arg("reason") = "");
  py::class_<GraphPlan, std::shared_ptr<GraphPlan>>(module, "GraphPlan")
      .def(py::init([](const Plan& plan, int device, size_t tensors, size_t numbers) {
             return std::make_shared<GraphPlan>(plan, static_cast<c10::DeviceIndex>(device), tensors, numbers);
           }),
           py::arg("plan"), py::arg("device"), py::arg("tensors"), py::arg("numbers") = 0)
      .def(
          "run",
          [](const GraphPlan& graph, const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& numbers,
             const std::vector<std::tuple<uint64_t, uint64_t, bool>>& draws) {
            std::vector<PhiloxState> states;
            for (const auto& [seed, offset, captured] : draws) states.push_back({seed, offset, captured});
            py::gil_scoped_release no_gil;
            return translated([&] { return graph.run(tensors, numbers, std::move(states)); });
          },
          py::arg("tensors"), py::arg("numbers") = std::vector<at::Tensor>(),
          py::arg("draws") = std::vector<std::tuple<uint64_t, uint64_t, bool>>());
  module.def(
      "reserve_draw",
      [](int device, const std::optional<at::Generator>& generator) {
        const PhiloxState state = generator_for(generator, static_cast<c10::DeviceIndex>(device)).reserve();
        return std::make_tuple(state.seed, state.offset, state.captured);
      },
      py::arg("device"), py::arg("generator") = py::none());
  module.def("philox", [](uint64_t seed, uint64_t offset, uint64_t begin, uint64_t count) {
    const py::bytes words(nullptr, count * sizeof(uint32_t));
    philox_u32(seed, offset, begin, count, reinterpret_cast<uint32_t*>(PyBytes_AS_STRING(words.ptr())));
    return words;
  });
  module.def("set_kernel_resolver", &resolve_with);
  module.def("ask_about_fallbacks", &ask_about_fallbacks);
  module.def("count_flops_with", &count_flops_with);
  module.def("before_first_use", [](py::object function) {
    first_use = new py::object(std::move(function));
    FirstUse::get().set(&call_first_use);
  });
  module.def(
      "register_kernels",
      [](const std::vector<std::pair<std::string, std::string>>& overloads, const std::set<std::string>& own_outputs) {
        for (const auto& [overload, functional] : overloads)
          register_kernel(overload, functional, own_outputs.count(overload) > 0);
      },
      py::arg("overloads"), py::arg("own_outputs") = std::set<std::string>());
  module.def("compose_ops", &compose_ops);
  module.def("call_key", [](const std::string& op, const std::vector<at::Tensor>& arguments) { // what a plan is kept by
    const auto found = c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), "");
    torch::jit::Stack stack(arguments.begin(), arguments.end());
    TORCH_CHECK_VALUE(stack.size() == found.schema().arguments().size(), op, " does not take ", stack.size(),
                      " tensors");
    Signature call;
    call.read(ArgumentRules(op_record(found.schema())), &stack);
    return call.words().vec();
  });
  module.def("kernel_cache_info", &kernel_cache_info);
  module.def("kernel_cache_clear", &kernel_cache_clear);
  module.def("relayouts", [] { return std::make_pair(moves_so_far().count.load(), moves_so_far().bytes.load()); });
}

} // namespace bringup
