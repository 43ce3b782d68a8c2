"""A checkpoint of the demo model's shape with other weights, and ways to give them to a server."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tests.engine.l3 import L3Server

CHANGED = tuple(f"model.layers.{layer}.self_attn.v_proj.weight" for layer in range(2, 30, 3))


def other_checkpoint(model: Path, folder: Path) -> Path:
    """The values of every third layer turned over: nonsense, of the same shape."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    for name in CHANGED:
        tensors[name] = -tensors[name]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def changed_tensors(checkpoint: Path) -> list[tuple[str, torch.Tensor]]:
    from safetensors.torch import load_file

    tensors = load_file(checkpoint / "model.safetensors")
    return [(name, tensors[name]) for name in CHANGED]


def from_disk(served: L3Server, checkpoint: Path, *, flush: bool = True) -> None:
    body = {"model_path": str(checkpoint), "flush_cache": flush}
    accepted(served.admin("POST", "/update_weights_from_disk", body))


def from_tensor(served: L3Server, checkpoint: Path) -> None:
    from sglang.srt.utils import MultiprocessingSerializer

    # By name: file descriptors are passed to children only.
    torch.multiprocessing.set_sharing_strategy("file_system")
    tensors = [(name, tensor.clone()) for name, tensor in changed_tensors(checkpoint)]
    payload = MultiprocessingSerializer.serialize(tensors, output_str=True)
    with session(served):
        body = {"serialized_named_tensors": [payload]}
        accepted(served.admin("POST", "/update_weights_from_tensor", body))


def from_distributed(served: L3Server, checkpoint: Path) -> None:
    """As a trainer does it: a process group with the server, and a broadcast into it."""
    from sglang.srt.utils.common import init_custom_process_group

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    name = f"hiqcache-test-{port}"
    where = {"master_address": "127.0.0.1", "master_port": port, "world_size": 2}
    tensors = changed_tensors(checkpoint)
    with ThreadPoolExecutor() as threads:
        body = {**where, "rank_offset": 1, "group_name": name, "backend": "gloo"}
        joined = threads.submit(served.admin, "POST", "/init_weights_update_group", body)
        group = init_custom_process_group(
            backend="gloo",
            init_method=f"tcp://127.0.0.1:{port}",
            world_size=2,
            rank=0,
            group_name=name,
        )
        accepted(joined.result())
        with session(served):
            body = {
                "names": [name for name, _ in tensors],
                "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors],
                "shapes": [list(tensor.shape) for _, tensor in tensors],
                "group_name": name,
            }
            received = threads.submit(
                served.admin, "POST", "/update_weights_from_distributed", body
            )
            for _, tensor in tensors:
                torch.distributed.broadcast(tensor, src=0, group=group)
            accepted(received.result())
        body = {"group_name": name}
        accepted(served.admin("POST", "/destroy_weights_update_group", body))
    torch.distributed.destroy_process_group(group)


@contextmanager
def session(served: L3Server) -> Iterator[None]:
    accepted(served.admin("POST", "/begin_weight_update", {}))
    yield
    accepted(served.admin("POST", "/end_weight_update", {}))


def accepted(answer: tuple[int, Any]) -> None:
    status, text = answer
    assert status == 200, text
