// See operands.h.
#include "placement/operands.h"

namespace bringup {

namespace {
c10::DataPtr room(Device& device, uint64_t nbytes, const bringup_placement& placement) {
  return allocate_on(static_cast<c10::DeviceIndex>(device.index), nbytes, &placement);
}
uint64_t address_of(const c10::DataPtr& data) { return reinterpret_cast<uint64_t>(data.get()); }
} // namespace

Moves& moves_so_far() {
  static Moves moves;
  return moves;
}

Operand::Operand(Device& device, int32_t stream, c10::StorageImpl* storage, uint64_t nbytes, bool fresh,
                 bool in_one_piece)
    : storage(storage),
      nbytes(nbytes),
      device_(device),
      stream_(stream),
      fresh_(fresh || (!storage && nbytes > 0)),
      in_one_piece_(in_one_piece) {
  const bringup_placement placement = storage ? placement_of(storage) : bringup_placement{};
  const auto address = storage ? reinterpret_cast<uint64_t>(storage->data_ptr().get()) : 0;
  forms_.push_back({placement, {}, address, true});
  forms_.front().placement.offset = 0;
}

// A replicated storage has everything on partition 0 too, which is enough to read it there.
const Operand::Form* Operand::serving(const bringup_placement& wanted, bool written) const {
  for (const Form& form : forms_)
    if (form.current && (same(form.placement, wanted) ||
                         (!written && wanted.kind == BRINGUP_SINGLE && form.placement.kind == BRINGUP_REPLICATE)))
      return &form;
  return nullptr;
}

double Operand::cost(const bringup_placement& wanted, bool written) const {
  if (nbytes == 0) return 0;
  if (in_one_piece_ && wanted.kind != BRINGUP_SINGLE) return -1;
  if (fresh_) return 0;
  double moved = serving(wanted, written) ? 0 : static_cast<double>(nbytes);
  if (written && storage && !same(home(), wanted)) moved += static_cast<double>(nbytes);
  return moved;
}

void Operand::settle(const bringup_placement& wanted) {
  fresh_ = false;
  Form& own = forms_.front();
  if (own.address == 0 || !same(own.placement, wanted)) {
    c10::DataPtr data = room(device_, nbytes, wanted);
    own.address = address_of(data);
    own.placement = wanted;
    StorageImpl* extras = storage ? extras_of(storage) : nullptr;
    if (extras) {
      storage->set_data_ptr_noswap(std::move(data));
      extras->placement = wanted;
    } else {
      own.data = std::move(data);
    }
  }
}

void Operand::fill(Form& form) {
  const Form* source = nullptr;
  for (const Form& other : forms_)
    if (other.current) source = &other;
  device_.relayout(form.address, form.placement, source->address, source->placement, nbytes, stream_);
  moves_so_far().count += 1;
  moves_so_far().bytes += nbytes;
  form.current = true;
}

uint64_t Operand::in_form(const bringup_placement& wanted, bool written) {
  if (nbytes == 0) return 0;
  if (fresh_) settle(wanted);
  auto* form = const_cast<Form*>(serving(wanted, written));
  if (!form) {
    for (Form& known : forms_)
      if (same(known.placement, wanted)) form = &known;
    if (!form) {
      c10::DataPtr data = room(device_, nbytes, wanted);
      const uint64_t address = address_of(data);
      forms_.push_back({wanted, std::move(data), address, false});
      form = &forms_.back();
    }
    fill(*form);
  }
  if (written)
    for (Form& other : forms_) other.current = &other == form;
  return form->address;
}

void Operand::put_back() {
  if (storage && nbytes > 0 && !fresh_ && !forms_.front().current) fill(forms_.front());
}

} // namespace bringup
