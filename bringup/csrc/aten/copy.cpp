// copy_ between every pair of devices, dtypes and layouts: bytes where bytes will do, the CPU's copy_ otherwise.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zero.h>
#include <torch/library.h>

#include "aten/own_kernels.h"
#include "aten/route.h"
#include "pytorch/allocator.h"

namespace bringup {
namespace {

using at::Tensor;

bool on_device(const Tensor& tensor) { return tensor.device().type() == kDeviceType; }

// Both tensors are the same bytes in the same order, without gaps: then nothing needs to know the dtype.
bool same_bytes(const Tensor& to, const Tensor& from) {
  return to.scalar_type() == from.scalar_type() && to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg() &&
         ((to.is_contiguous() && from.is_contiguous()) ||
          (to.strides() == from.strides() && to.is_non_overlapping_and_dense()));
}

c10::Stream stream_of(c10::DeviceIndex index) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, index), current_stream(index));
}

// Plain bytes between a tensor of ours and one of the CPU.
void copy_bytes(const Tensor& to, const Tensor& from, bool non_blocking) {
  const NamedWork named("aten::copy_");
  const bool inwards = on_device(to);
  const Tensor &far = inwards ? to : from, &host = inwards ? from : to;
  const c10::DeviceIndex index = far.device().index();
  translated([&] {
    Device& device = device_at(index);
    const Location place = locate(*far.unsafeGetTensorImpl(), device);
    const auto bytes = reinterpret_cast<uint64_t>(inwards ? host.const_data_ptr() : host.mutable_data_ptr());
    device.copy(inwards ? place.address : bytes, inwards ? bytes : place.address, to.nbytes(),
                inwards ? BRINGUP_HOST_TO_DEVICE : BRINGUP_DEVICE_TO_HOST, current_stream(index), place.pointer());
    const bool recorded =
        non_blocking && is_pinned(host.const_data_ptr()) && record_pinned(host.storage().data_ptr(), stream_of(index));
    if (!recorded) device.drain(current_stream(index)); // pageable memory may change as soon as we return
  });
}

// Bytes inside one device. Partitioned storages of two placements, or at two offsets, take the general way.
bool device_to_device(const Tensor& to, const Tensor& from) {
  const c10::DeviceIndex index = to.device().index();
  return translated([&] {
    Device& device = device_at(index);
    const Location target = locate(*to.unsafeGetTensorImpl(), device);
    const Location source = locate(*from.unsafeGetTensorImpl(), device);
    if (target.partitioned &&
        (target.placement.kind != source.placement.kind || target.placement.block != source.placement.block ||
         target.placement.offset != source.placement.offset))
      return false;
    device.copy(target.address, source.address, to.nbytes(), BRINGUP_DEVICE_TO_DEVICE, current_stream(index),
                target.pointer());
    return true;
  });
}

// Metadata describes a storage, so it goes along when a whole storage is copied into one that has none.
void carry_metadata(const Tensor& to, const Tensor& from) {
  StorageImpl* source = extras_of(from.storage().unsafeGetStorageImpl());
  if (C10_LIKELY(!source || !source->metadata)) return;
  StorageImpl* target = extras_of(to.storage().unsafeGetStorageImpl());
  if (target && !target->metadata && from.nbytes() == source->nbytes() && to.nbytes() == target->nbytes())
    target->metadata = source->metadata;
}

// Two devices of one driver that can talk to each other. Streams on both sides wait for each other's work.
bool peer_copy(const Tensor& to, const Tensor& from) {
  const c10::DeviceIndex to_index = to.device().index(), from_index = from.device().index();
  return translated([&] {
    Device& target = device_at(to_index);
    Device& source = device_at(from_index);
    if (target.spec().partitions > 1 || source.spec().partitions > 1 || !target.reaches(source)) return false;
    const int32_t to_stream = current_stream(to_index), from_stream = current_stream(from_index);
    Event ready = source.record(from_stream);
    source.wait(ready, target, to_stream);
    source.destroy(ready);
    target.copy_from(source, locate(*to.unsafeGetTensorImpl(), target).address,
                     locate(*from.unsafeGetTensorImpl(), source).address, to.nbytes(), to_stream);
    Event copied = target.record(to_stream); // the source may be reused or overwritten only after this
    target.wait(copied, source, from_stream);
    target.destroy(copied);
    return true;
  });
}

// Types that compiled kernels know.
bool plain(const Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return !tensor.is_neg() && !tensor.is_conj() &&
         (c10::isIntegralType(type, /*includeBool=*/true) || type == at::kFloat || type == at::kDouble ||
          type == at::kHalf || type == at::kBFloat16);
}

bool kernel_copy(const Tensor& to, const Tensor& from);

// Real and imaginary parts each; kernels know no complex numbers.
bool kernel_copy_complex(const Tensor& to, const Tensor& from) {
  const Tensor parts = at::view_as_real(to.is_conj() ? to.conj() : to);
  if (!from.is_complex()) {
    if (!kernel_copy(parts.select(-1, 0), from)) return false;
    parts.select(-1, 1).zero_();
    return true;
  }
  if (!kernel_copy(parts, at::view_as_real(from.is_conj() ? from.conj() : from))) return false;
  if (to.is_conj() != from.is_conj()) parts.select(-1, 1).neg_();
  return true;
}

// Any dtypes and strides inside one device, by a kernel of its own (bringup/lowering/ops/movement.py); whoever calls
// copy_ has checked the arguments. False: these tensors have none.
bool kernel_copy(const Tensor& to, const Tensor& from) {
  if (!device_at(to.device().index()).runs_kernels()) return false;
  if (to.is_complex()) return kernel_copy_complex(to, from);
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("bringup::copy_elements_", "");
  if (!plain(to) || !plain(from) || !op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) return false;
  torch::jit::Stack stack{to, from};
  op.callBoxed(stack);
  return true;
}

// Any dtypes, strides and flags on one device (the other side may be a CPU tensor): the CPU's copy_ on stand-ins.
void general_copy(const Tensor& to, const Tensor& from) {
  HostCall call("aten::copy_");
  call.add(to, HostCall::Accept::any);
  call.add(from, HostCall::Accept::any);
  static OpRecord& record = op_record(c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "").schema());
  const bool library = call.device().spec().host_library != 0;
  const Refusal refusal("kernels do not copy these types");
  std::optional<Fallback> fallback; // with a CPU tensor on one side the CPU takes part anyway
  if (!library && on_device(to) && on_device(from)) fallback.emplace(record, call.index());
  call.prepare();
  Tensor target = call.stand_in(to);
  const Tensor source = call.stand_in(from);
  {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::_ops::copy_::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), target, source, false);
  }
  call.write_back(to, target);
  if (fallback) fallback->done(call.bytes_moved());
  if (library && charges(call.device())) charge(call.device(), record, {from}, {to});
}

void between_devices(const Tensor& to, const Tensor& from, bool non_blocking) {
  if (same_bytes(to, from) && peer_copy(to, from)) return;
  // Bring it into the shape the target wants on the source's side, then move plain bytes.
  if (!same_bytes(to, from)) {
    const Tensor packed = at::empty(from.sizes(), from.options().dtype(to.scalar_type()));
    packed.copy_(from);
    Tensor arrived = at::empty(to.sizes(), to.options());
    between_devices(arrived, packed, non_blocking);
    const_cast<Tensor&>(to).copy_(arrived);
    return;
  }
  Tensor host = at::empty_like(from, from.options().device(c10::kCPU));
  copy_bytes(host, from, false);
  copy_bytes(to, host, false);
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  TORCH_CHECK(self.defined(), "self is undefined");
  TORCH_CHECK(source.defined(), "src is undefined");
  if (self.is_same(source)) return self;
  if (C10_UNLIKELY(source._is_zerotensor())) return self.zero_();
  TORCH_CHECK_NOT_IMPLEMENTED(self.layout() == c10::kStrided && source.layout() == c10::kStrided, "copy_ from layout ",
                              source.layout(), " to ", self.layout(), " on ", self.device(),
                              ": convert them to dense tensors first");
  TORCH_CHECK_NOT_IMPLEMENTED(
      !self.is_quantized() && !source.is_quantized(), "aten::copy_: quantized tensors cannot live on ",
      on_device(self) ? self.device() : source.device(), "; dequantize() first, or keep the tensor on the CPU");
  if (source.is_complex() && !self.is_complex()) {
    TORCH_WARN_ONCE("Casting complex values to real discards the imaginary part");
  }
  const Tensor from = source.sizes() == self.sizes() ? source : source.expand(self.sizes());
  if (self.numel() == 0) return self;
  TORCH_CHECK_NOT_IMPLEMENTED((self.is_cpu() || on_device(self)) && (from.is_cpu() || on_device(from)), "copy_ from ",
                              from.device(), " to ", self.device(), " is not possible directly: go through the CPU");

  at::assert_no_internal_overlap(self);
  at::assert_no_partial_overlap(self, from);
  if (on_device(self) && on_device(from)) {
    if (same_bytes(self, from)) carry_metadata(self, from);
    if (self.device() != from.device())
      between_devices(self, from, non_blocking);
    else if ((!same_bytes(self, from) || !device_to_device(self, from)) && !kernel_copy(self, from))
      general_copy(self, from);
  } else if (!same_bytes(self, from)) {
    // A conversion: done by the CPU on whichever side its memory is, unless that side is out of its sight.
    const Tensor& far = on_device(self) ? self : from;
    if (device_at(far.device().index()).spec().host_visible || !far.is_non_overlapping_and_dense()) {
      general_copy(self, from);
    } else {
      Tensor host = at::empty_like(far, far.options().device(c10::kCPU));
      if (!on_device(self)) copy_bytes(host, from, false);
      if (far.is_conj()) host._set_conj(true); // the bytes that are stored are those behind the flags
      if (far.is_neg()) host._set_neg(true);
      if (on_device(self))
        copy_bytes(self, host.copy_(from), false);
      else
        self.copy_(host);
    }
  } else {
    copy_bytes(self, from, non_blocking);
  }
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& dst, bool non_blocking) {
  Tensor target = dst;
  return copy_(target, self, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

} // namespace

void own_copies() {
  own_kernel("aten::copy_", TORCH_FN(copy_));
  own_kernel("aten::_copy_from", TORCH_FN(copy_from));
  own_kernel("aten::_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
}

} // namespace bringup
