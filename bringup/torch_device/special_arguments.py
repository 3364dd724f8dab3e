"""Arguments of ATen's ops of which the schema does not say where they may live or that they are written.

The core has this table from the start (``_C.attach``): "base name argument" → the sum of what holds.
"""

from __future__ import annotations

FROM_CPU = 1
"""PyTorch's own kernels take it from the CPU whatever the device of the rest."""
DEVICE_ONLY = 2
"""Numbers that CUDA's kernels read on the device, or refuse; a learning rate may come from anywhere."""
WRITTEN = 4
"""The running statistics, of which the schemas do not say that they are written."""

_FROM_CPU = {
    "index": "indices",
    "_unsafe_index": "indices",
    "index_put": "indices",
    "index_put_": "indices",
    "_index_put_impl_": "indices",
    "_unsafe_index_put": "indices",
    "_pack_padded_sequence": "lengths",
    "_pack_padded_sequence_backward": "batch_sizes",
    "_pad_packed_sequence": "batch_sizes",
    "_ctc_loss": "input_lengths target_lengths",
    "_ctc_loss_backward": "input_lengths target_lengths",
}
_SCALED = ("_amp_foreach_non_finite_check_and_unscale", "_amp_update_scale")
_DEVICE_ONLY = {f"_fused_{name}": "state_steps" for name in ("adagrad", "adam", "adamw")} | dict.fromkeys(
    _SCALED, "inv_scale found_inf"
)
_WRITTEN = dict.fromkeys(("native_batch_norm", "batch_norm_update_stats"), "running_mean running_var")

SPECIAL_ARGUMENTS = {
    f"aten::{op} {argument}": kind
    for kind, table in (
        (FROM_CPU, _FROM_CPU),
        (DEVICE_ONLY, _DEVICE_ONLY | {f"{op}_": names for op, names in _DEVICE_ONLY.items()}),
        (WRITTEN, _WRITTEN),
    )
    for op, names in table.items()
    for argument in names.split()
}
