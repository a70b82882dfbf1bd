"""Whether the network computes in bfloat16: twice as fast on processors that are made for it."""

from __future__ import annotations

import torch

from ddpipe.distributed import World


def computes_in_bf16(precision: str, world: World) -> bool:
    """What "auto" stands for on these devices, or what was asked for; the same on all ranks.

    Args:
        precision: Of the recipe.
        world: "auto" is bf16 if the devices of all ranks are fast at it.
    """
    if precision != "auto":
        return precision == "bf16"
    slow = not _is_fast_at_bf16(world.device)
    return not world.max(int(slow))


def _is_fast_at_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    has = {name for name, there in torch.cpu.get_capabilities().items() if there is True}
    # Intel's processors since Sapphire Rapids, known by avx512_fp16, do bf16 fast by their tiles (AMX) only:
    # where those are not to be had, as in many virtual machines, convolutions take 1.5 times as long as
    # in fp32.
    return "amx_bf16" in has or ("avx512_bf16" in has and "avx512_fp16" not in has)
