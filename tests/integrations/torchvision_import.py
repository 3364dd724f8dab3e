"""torchvision beside a torch without CUDA."""

from __future__ import annotations

from functools import cache

import torch

#: torchvision's ops, whose names its import needs.
OPS = """
    nms qnms roi_align _roi_align_backward ps_roi_align _ps_roi_align_backward roi_pool _roi_pool_backward
    ps_roi_pool _ps_roi_pool_backward qroi_align deform_conv2d _deform_conv2d_backward
"""


@cache
def import_torchvision() -> torch.library.Library | None:
    """Imports torchvision if it is installed, also where its binary is for another build of torch.

    PyPI's is for CUDA: beside a torch without CUDA it cannot be loaded, and the import ends with "operator
    torchvision::nms does not exist". The libraries want its transforms, which are Python; so the names of its ops are
    declared, and no program here calls one.
    """
    try:
        import torchvision
    except ModuleNotFoundError:
        return None
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        library = torch.library.Library("torchvision", "DEF")
        for name in OPS.split():
            library.define(f"{name}(Tensor input) -> Tensor")
        import torchvision  # noqa: F401

        return library
    return None
