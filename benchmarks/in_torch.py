"""The paper's networks in PyTorch, as one writes them there, for `python -m benchmarks speed`.

They compute what those of `pjax.experiments.models` do, from the same parameters. On a GPU a step of training
is captured as a CUDA graph, so that Python takes no part in it, as it takes none in the steps of a scan;
products are in TF32, as they are by default in JAX, and Adam is the fused one.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import torch
from torch import nn
from torch.nn import functional

Params = Mapping[str, Any]

WARM_UP = 3
"""Steps before one is captured."""
MIB = 2**20


def sees(platform: str) -> bool:
    """Whether PyTorch computes on devices of a kind of JAX, too."""
    return platform == "cpu" or (platform == "gpu" and torch.cuda.is_available())


# --- Networks ---


def _linear(weight: Any, bias: Any = None) -> nn.Linear:
    layer = nn.Linear(*weight.shape, bias=bias is not None)
    return _filled(layer, np.transpose(weight), bias)


def _convolution(kernel: Any, bias: Any) -> nn.Conv2d:
    height, width, *channels = kernel.shape
    layer = nn.Conv2d(*channels, (height, width), padding=(height // 2, width // 2))
    return _filled(layer, np.transpose(kernel, (3, 2, 0, 1)), bias)


def _filled(layer: Any, weight: Any, bias: Any = None) -> Any:
    with torch.no_grad():
        layer.weight.copy_(_tensor(weight))
        if bias is not None:
            layer.bias.copy_(_tensor(bias))
    return layer


def _tensor(array: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(array))


class _Layered(nn.Module):
    """Hidden layers with relus, and a linear readout, which with ``skip`` reads all of them.

    Args:
        params: those of the network of `pjax.experiments.models`.
        skip: whether the readout sees all hidden layers, instead of the last.
    """

    def __init__(self, params: Params, skip: bool = False) -> None:
        super().__init__()
        layer = _convolution if params["hidden.0.weight"].ndim == 4 else _linear
        depth = sum(name.startswith("relu.") for name in params)
        self.hidden = nn.ModuleList(
            layer(params[f"hidden.{i}.weight"], params[f"relu.{i}.bias"]) for i in range(depth)
        )
        self.out = _linear(params["out.weight"])
        self.skip = skip

    def read(self, x: torch.Tensor) -> torch.Tensor:
        """What the readout reads of an input of the first layer."""
        outputs = []
        for layer in self.hidden:
            x = functional.relu(layer(x))
            outputs.append(x)
        features = [self.features(x) for x in (outputs if self.skip else outputs[-1:])]
        return torch.cat(features, -1) if self.skip else features[0]

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """What the readout sees of the output of one layer."""
        return x


class MLP(_Layered):
    """`pjax.experiments.models.MLP`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of inputs of shape ``(batch, inputs)``."""
        return self.out(self.read(x))


class CNN(_Layered):
    """`pjax.experiments.models.CNN`."""

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return x.amax((2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of images of shape ``(batch, channels, height, width)``."""
        return self.out(self.read(x))


class RNN(_Layered):
    """`pjax.nn.RNN`."""

    def __init__(self, params: Params, skip: bool = False) -> None:
        super().__init__(params, skip)
        weight = params["embed.weight"]
        self.embed = _filled(nn.Embedding(*weight.shape), weight)
        self.state = _linear(params["state.weight"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of codes of shape ``(batch, time)``, after each."""
        embedded = self.embed(x)
        state = embedded.new_zeros(len(x), self.state.out_features)
        seen = []
        for now in embedded.unbind(1):
            seen.append(self.read(torch.cat([now, state], -1)))
            state = functional.relu(self.state(seen[-1]))
        return self.out(torch.stack(seen, 1))


NETWORKS = {"mlp": MLP, "cnn": CNN, "rnn": RNN}


# --- Training ---


class Training:
    """A network, its data and an optimiser on a device; on a GPU with one step as a CUDA graph.

    Args:
        kind: one of `NETWORKS`.
        params, x, y: parameters and data of the network in JAX.
        optimiser: ``"SGD"`` or ``"Adam"``.
        skip: whether the readout sees all hidden layers.
        platform: the kind of device, as JAX calls it.
    """

    def __init__(
        self,
        kind: str,
        params: Params,
        x: jax.Array,
        y: jax.Array,
        optimiser: str,
        *,
        skip: bool = False,
        platform: str = "cpu",
    ) -> None:
        on_gpu = platform == "gpu"
        torch.set_num_threads(os.cpu_count() or 1)  # as JAX does
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        device = torch.device("cuda" if on_gpu else "cpu")
        self.network = NETWORKS[kind](params, skip).to(device)
        self.x, self.y = _tensor(x).to(device), _tensor(y).long().to(device)
        if kind == "cnn":
            self.x = self.x.permute(0, 3, 1, 2).contiguous()
        weights = self.network.parameters()
        if optimiser == "SGD":
            self.optimiser: Any = torch.optim.SGD(weights, lr=0.01)
        else:
            options = {"capturable": True, "fused": True} if on_gpu else {}
            self.optimiser = torch.optim.Adam(weights, lr=1e-3, **options)
        self.temp_mib = float("nan")
        self.graph: torch.cuda.CUDAGraph | None = None
        if on_gpu:
            self._warm_up()
            self._capture()

    def loss(self) -> torch.Tensor:
        """The mean of the cross-entropy."""
        logits = self.network(self.x)
        return functional.cross_entropy(logits.flatten(0, -2), self.y.flatten())

    def step(self) -> None:
        """One step, kernel by kernel."""
        self.optimiser.zero_grad(set_to_none=True)
        self.loss().backward()
        self.optimiser.step()

    def run(self, steps: int) -> None:
        """So many steps, to their end."""
        for _ in range(steps):
            if self.graph is None:
                self.step()
            else:
                self.graph.replay()
        if self.x.is_cuda:
            torch.cuda.synchronize()

    def _warm_up(self) -> None:
        """Some steps on another stream, as a capture wants them, and the memory that the last one takes."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.optimiser.zero_grad(set_to_none=True)
                torch.cuda.synchronize()
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                self.step()
                torch.cuda.synchronize()
                self.temp_mib = (torch.cuda.max_memory_allocated() - before) / MIB
        torch.cuda.current_stream().wait_stream(stream)

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        self.optimiser.zero_grad(set_to_none=True)  # so that what is captured adds to none
        try:
            # Not in the way of the threads of JAX; and after a failure the stream is this one again.
            with (
                torch.cuda.stream(torch.cuda.current_stream()),
                torch.cuda.graph(graph, capture_error_mode="thread_local"),
            ):
                self.loss().backward()
                self.optimiser.step()
        except RuntimeError as error:
            print(f"PyTorch: a step is not captured, and runs kernel by kernel: {error}", file=sys.stderr)
            return
        self.graph = graph
