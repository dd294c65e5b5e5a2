"""The layers of a Transformer as ONNX graphs, written node by node from its weights.

Embeddings and the output layer are not in them: to look up rows, and to find a maximum, takes none.
Both graphs take any number of sentences of any length.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Weights = Mapping[str, NDArray[Any]]  # by the names of torch's modules
Ranges = dict[str, tuple[float, float]]  # of the numbers that a linear layer reads, by its name

OPSET = 20
MICROSOFT = "com.microsoft"  # fused operators of ONNX Runtime
EPSILON = 1e-5  # of torch's LayerNorm
# Two products of 8 and 7 bits fit into 16: exact on processors that add them up in as many.
LARGEST = 64
STEPS = 255  # of a range


def encoder_graph(weights: Weights, heads: int, ranges: Ranges | None = None) -> bytes:
    """``x (batch, source, dim)`` and ``mask (batch, source)`` to ``hidden`` of the shape of x.

    With a length predictor also to ``lengths (batch, max_length + 1)``: its logits.
    """
    graph = Graph(weights, heads, ranges)
    x = graph.norm("transformer.source_norm", "x")
    for layer in graph.layers("transformer.encoder"):
        x = graph.block(f"{layer}.attention", x, graph.self_attention)
        x = graph.block(f"{layer}.feed_forward", x, graph.feed_forward)
    graph.result("hidden", graph.last_norm("transformer.encoder_norm", x))
    if "length.output.weight" in weights:
        first = graph.add("Gather", "hidden", graph.constant(np.array(0)), axis=1)
        graph.result("lengths", graph.linear("length.output", first, exact=True))
    return graph.model({"x": "fff", "mask": "ii"}, "encoder")


def decoder_graph(weights: Weights, heads: int, ranges: Ranges | None = None) -> bytes:
    """What the decoder makes of ``x (rows, length, dim)`` and ``mask (rows, length)``: ``hidden``.

    It reads ``memory (batch, source, dim)`` with ``memory_mask (batch, source)``; the rows are a
    multiple of the batch, those of a sentence next to each other. For a DAG ``positions (length,
    2 * dim + heads)`` are the vertices' own share of query, key and gate (see :func:`link_table`),
    and ``links (rows, length, length)`` the log-probabilities of its links.
    """
    graph = Graph(weights, heads, ranges)
    x = graph.norm("transformer.target_norm", "x")
    for layer in graph.layers("transformer.decoder"):
        x = graph.block(f"{layer}.attention", x, graph.self_attention)
        x = graph.block(f"{layer}.source_attention", x, graph.source_attention)
        x = graph.block(f"{layer}.feed_forward", x, graph.feed_forward)
    graph.result("hidden", graph.last_norm("transformer.decoder_norm", x))
    inputs = {"x": "fff", "mask": "ii", "memory": "fff", "memory_mask": "ii"}
    if "links.gate.weight" in weights:
        graph.result("links", graph.links())
        inputs["positions"] = "ff"
    return graph.model(inputs, "decoder")


class Graph:
    """A graph that grows node by node; a tensor is the name of what computes it.

    Args:
        weights: of the model.
        heads: of attention.
        ranges: of what its linear layers read, for int8. None: float32. Empty: float32, and what
            they read are results, too, by their names.
    """

    def __init__(self, weights: Weights, heads: int, ranges: Ranges | None = None) -> None:
        self.weights, self.heads, self.ranges = weights, heads, ranges
        self.dim = weights["transformer.tokens.weight"].shape[1]
        self.pre_norm = "transformer.decoder_norm.weight" in weights
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._outputs: list[str] = []
        self._read: dict[str, str] = {}  # by linear layer
        self._rounded: dict[str, tuple[str, str, str]] = {}

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """A node with one output; its name."""
        return self.add_many(1, operator, *inputs, domain=domain, **attributes)[0]

    def add_many(
        self, n: int, operator: str, *inputs: str, domain: str = "", **attributes: Any
    ) -> list[str]:
        names = [f"{operator}_{len(self._nodes)}_{i}" for i in range(n)]
        self._nodes.append(
            helper.make_node(operator, list(inputs), names, domain=domain, **attributes)
        )
        return names

    def constant(self, value: NDArray[Any]) -> str:
        name = f"constant_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def result(self, name: str, tensor: str) -> None:
        self._nodes.append(helper.make_node("Identity", [tensor], [name]))
        self._outputs.append(name)

    def model(self, inputs: Mapping[str, str], name: str) -> bytes:
        """The finished graph. An input has a letter for each axis: f of floats, i of int32."""
        if self.ranges == {}:
            for layer, tensor in self._read.items():
                self.result(layer, tensor)
        kinds = {"f": TensorProto.FLOAT, "i": TensorProto.INT32}
        takes = [
            helper.make_tensor_value_info(
                key, kinds[axes[0]], [f"{key}_{i}" for i in range(len(axes))]
            )
            for key, axes in inputs.items()
        ]
        gives = [
            helper.make_tensor_value_info(key, TensorProto.FLOAT, None) for key in self._outputs
        ]
        graph = helper.make_graph(self._nodes, name, takes, gives, self._constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name="oaxe")
        return model.SerializeToString()

    def layers(self, name: str) -> Iterator[str]:
        number = 0
        while f"{name}.{number}.attention.norm.weight" in self.weights:
            yield f"{name}.{number}"
            number += 1

    def linear(self, name: str, x: str, *more: str, exact: bool = False) -> str:
        """``x @ weight.T + bias``, of one layer or of several side by side."""
        names = (name, *more)
        weight, bias = (
            np.concatenate([self.weights[f"{n}.{kind}"] for n in names])
            for kind in ("weight", "bias")
        )
        if not exact:
            self._read[name] = x
        if exact or not self.ranges:
            return self.add("Add", self._times(x, weight), self.constant(bias))
        whole, step, zero = self._whole(x, *self.ranges[name])
        rounded, scale = quantised(weight, LARGEST)
        parts = step, self.constant(scale), zero, "", self.constant(bias)
        given = whole, self.constant(rounded.T), *parts
        return self.add("MatMulIntegerToFloat", *given, domain=MICROSOFT)

    def _whole(self, x: str, low: float, high: float) -> tuple[str, str, str]:
        """Whole numbers from 0 to STEPS, what a step is worth, and the number that is 0."""
        if x not in self._rounded:
            step = np.array((high - low) / STEPS or 1.0, np.float32)
            zero = np.rint(-low / step).astype(np.uint8)
            parts = self.constant(step), self.constant(zero)
            self._rounded[x] = (self.add("QuantizeLinear", x, *parts), *parts)
        return self._rounded[x]

    def norm(self, name: str, x: str) -> str:
        return self.add("LayerNormalization", x, *self._scale_and_shift(name), epsilon=EPSILON)

    def last_norm(self, name: str, x: str) -> str:
        """Post-norm layers end normalised."""
        return self.norm(name, x) if self.pre_norm else x

    def block(self, name: str, x: str, sublayer: Any) -> str:
        """A sublayer with its residual connection."""
        inner, norm = f"{name}.sublayer", f"{name}.norm"
        if self.pre_norm:
            return self.add("Add", x, sublayer(inner, self.norm(norm, x)))
        return self.norm(norm, self.add("Add", x, sublayer(inner, x)))

    def self_attention(self, name: str, x: str) -> str:
        both = self.linear(f"{name}.query", x, f"{name}.key_value")
        query, key, value = self.add_many(3, "Split", both, axis=2, num_outputs=3)
        seen = self._attend(query, key, value, "mask")
        return self.linear(f"{name}.output", seen)

    def source_attention(self, name: str, x: str) -> str:
        """Rows of one sentence are more queries of its keys."""
        key, value = self.add_many(
            2, "Split", self.linear(f"{name}.key_value", "memory"), axis=2, num_outputs=2
        )
        batch = self.add("Shape", "memory", start=0, end=1)
        together = self.add("Concat", batch, self.constant(np.array([-1, self.dim])), axis=0)
        query = self.add("Reshape", self.linear(f"{name}.query", x), together)
        seen = self._attend(query, key, value, "memory_mask")
        return self.linear(f"{name}.output", self.add("Reshape", seen, self.add("Shape", x)))

    def feed_forward(self, name: str, x: str) -> str:
        inner = self.add("Gelu", self.linear(f"{name}.inner", x), domain=MICROSOFT)
        return self.linear(f"{name}.output", inner)

    def links(self) -> str:
        """Of a DAG, as :class:`oaxe.systems.dag.Links` computes them; in float32."""
        heads, size = self.heads, self.dim // self.heads
        parts = ("query", "key", "gate")
        weight = np.concatenate([self.weights[f"links.{p}.weight"][:, : self.dim] for p in parts])
        features = self.add("Add", self._times("hidden", weight), "positions")
        widths = self.constant(np.array([self.dim, self.dim, heads]))
        query, key, gate = self.add_many(3, "Split", features, widths, axis=2)
        split = self.constant(np.array([0, 0, heads, size]))
        query = self.add("Transpose", self.add("Reshape", query, split), perm=[0, 2, 1, 3])
        key = self.add("Transpose", self.add("Reshape", key, split), perm=[0, 2, 3, 1])
        query = self.add("Div", query, self.constant(np.array(size**0.5, np.float32)))
        length = self.add("Shape", "mask", start=1, end=2)
        square = self.add(
            "Expand", self.constant(np.array(True)), self.add("Concat", length, length, axis=0)
        )
        one = self.constant(np.array(1))
        later = self.add("Trilu", self.add("Cast", square, to=TensorProto.FLOAT), one, upper=1)
        axes = self.constant(np.array([1]))
        linked = self.add(
            "And",
            self.add("Cast", later, to=TensorProto.BOOL),
            self.add("Cast", self.add("Unsqueeze", "mask", axes), to=TensorProto.BOOL),
        )  # (rows, length, length)
        scores = self.add(
            "Where",
            self.add("Unsqueeze", linked, axes),
            self.add("MatMul", query, key),
            self.constant(np.array(np.finfo(np.float32).min)),
        )
        gate = self.add("Transpose", self.add("LogSoftmax", gate, axis=2), perm=[0, 2, 1])
        gate = self.add("Unsqueeze", gate, self.constant(np.array([3])))
        mixed = self.add("Add", self.add("LogSoftmax", scores, axis=3), gate)
        mixed = self.add("ReduceLogSumExp", mixed, axes, keepdims=0)
        return self.add("Where", linked, mixed, self.constant(np.array(-np.inf, np.float32)))

    def _attend(self, query: str, key: str, value: str, mask: str) -> str:
        given = (query, key, value, "", mask)
        return self.add("MultiHeadAttention", *given, domain=MICROSOFT, num_heads=self.heads)

    def _times(self, x: str, weight: NDArray[Any]) -> str:
        return self.add("MatMul", x, self.constant(weight.T))

    def _scale_and_shift(self, name: str) -> tuple[str, str]:
        return self.constant(self.weights[f"{name}.weight"]), self.constant(
            self.weights[f"{name}.bias"]
        )


def quantised(weight: NDArray[Any], largest: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Rows as whole numbers up to ``largest``, and the scale of each: ``weight ≈ rounded * scale``.

    Example:
        >>> rounded, scale = quantised(np.array([[1.0, -2.0], [0.0, 0.0]], np.float32), 127)
        >>> rounded.tolist(), scale.tolist()
        ([[64, -127], [0, 0]], [0.015748031437397003, 1.0])
    """
    most = np.abs(weight).max(1)
    scale = np.where(most > 0, most / largest, 1.0).astype(np.float32)
    return np.rint(weight / scale[:, None]).astype(np.int8), scale


def link_table(weights: Weights) -> NDArray[np.float32]:
    """``(vertices, 2 * dim + heads)``: the share of the positions in queries, keys and gates."""
    dim = weights["transformer.tokens.weight"].shape[1]
    at = weights["links.vertex_positions.weight"]
    parts = [
        at @ weights[f"links.{part}.weight"][:, dim:].T + weights[f"links.{part}.bias"]
        for part in ("query", "key", "gate")
    ]
    return np.concatenate(parts, 1).astype(np.float32)
