"""Our ONNX graphs in numpy, where ONNX Runtime is not installed: the same results, slower.

It knows the operators that :mod:`oaxe.engine.graph` writes, and as much of the file format.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

Array = NDArray[Any]
DTYPES: dict[int, type[np.generic]] = {
    1: np.float32,
    2: np.uint8,
    3: np.int8,
    6: np.int32,
    7: np.int64,
    9: np.bool_,
}  # by ONNX's numbers
MASKED = np.float32(-10_000)  # added to the score of a key that is not seen
STEPS = 255  # of a number that was rounded to 8 bits


class Node(NamedTuple):
    operator: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]


class Session:
    """As ``onnxruntime.InferenceSession``."""

    def __init__(self, path: Path) -> None:
        (graph,) = (value for number, value in fields(memoryview(path.read_bytes())) if number == 7)
        self.nodes, self.constants, self.outputs = list[Node](), dict[str, Array](), list[str]()
        for number, value in fields(graph):
            if number == 1:
                self.nodes.append(node(value))
            elif number == 5:
                name, array = tensor(value)
                # Products of whole numbers are exact in float32, or nearly, and much faster.
                self.constants[name] = array.astype(np.float32) if array.dtype == np.int8 else array
            elif number == 12:
                self.outputs.append(text(first(value, 1)))
        if unknown := {n.operator for n in self.nodes} - OPERATORS.keys():
            raise ValueError(f"unknown operators: {', '.join(sorted(unknown))}")

    def run(self, outputs: None, given: Mapping[str, Array]) -> list[Array]:
        values: dict[str, Any] = {**self.constants, **given, "": None}
        for operator, inputs, names, attributes in self.nodes:
            found = OPERATORS[operator](*(values[name] for name in inputs), **attributes)
            values.update(zip(names, found if isinstance(found, list) else [found], strict=True))
        return [values[name] for name in self.outputs]


def fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a message in the wire format of protocol buffers."""
    at = 0
    while at < len(message):
        key, at = whole_number(message, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = whole_number(message, at)
            yield number, value - 2**64 * (value >= 2**63)
        elif kind == 2:
            size, at = whole_number(message, at)
            yield number, message[at : at + size]
            at += size
        elif kind == 5:
            yield number, struct.unpack_from("<f", message, at)[0]
            at += 4
        else:
            raise ValueError(f"a field of the kind {kind}")


def whole_number(message: memoryview, at: int) -> tuple[int, int]:
    """Seven bits a byte, the lowest first; and where the next field begins."""
    value = shift = 0
    while True:
        byte = message[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def first(message: memoryview, wanted: int) -> Any:
    return next(value for number, value in fields(message) if number == wanted)


def text(value: memoryview) -> str:
    return str(value, "utf-8")


def node(message: memoryview) -> Node:
    found = Node("", [], [], {})
    for number, value in fields(message):
        if number in (1, 2):
            (found.inputs if number == 1 else found.outputs).append(text(value))
        elif number == 4:
            found = found._replace(operator=text(value))
        elif number == 5:
            attribute = list(fields(value))
            several = [v for n, v in attribute if n == 8]
            one = [v for n, v in attribute if n in (2, 3)]
            found.attributes[text(dict(attribute)[1])] = several or one[0]
    return found


def tensor(message: memoryview) -> tuple[str, Array]:
    content = list(fields(message))
    of = dict(content)
    array: Array = np.frombuffer(of.get(9, b""), DTYPES[of[2]])
    return text(of[8]), array.reshape([value for number, value in content if number == 1])


def normalised(x: Array, scale: Array, shift: Array, epsilon: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    variance = np.square(centred).mean(-1, keepdims=True)
    out: Array = centred / np.sqrt(variance + np.float32(epsilon)) * scale + shift
    return out


def rounded_product(x: Array, weight: Array, scale: Array, zero: None, bias: Array) -> Array:
    """x is rounded to STEPS steps from its smallest number to its largest, in older exports."""
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    step = (high - low) / np.float32(STEPS) or np.float32(1)
    middle = np.rint(-low / step)
    whole = (np.rint(x / step) + middle).clip(0, STEPS) - middle
    out: Array = whole.reshape(-1, x.shape[-1]) @ weight
    out *= step * scale
    out += bias
    return out.reshape(*x.shape[:-1], -1)


def in_steps(x: Array, step: Array, zero: Array) -> Array:
    """Whole numbers from 0 to STEPS; in float32, for their products."""
    out: Array = (np.rint(x / step) + zero).clip(0, STEPS)
    return out


def whole_product(
    x: Array, weight: Array, step: Array, scale: Array, zero: Array, none: None, bias: Array
) -> Array:
    """Of what was rounded by :func:`in_steps`."""
    out: Array = (x - np.float32(zero)).reshape(-1, x.shape[-1]) @ weight
    out *= step * scale
    out += bias
    return out.reshape(*x.shape[:-1], -1)


def attention(
    query: Array, key: Array, value: Array, bias: None, mask: Array, num_heads: int
) -> Array:
    """``(batch, length, dim)`` each; ``mask (batch, keys)``."""

    def heads(x: Array) -> Array:
        return x.reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)

    scores = heads(query) @ heads(key).swapaxes(2, 3)
    scores *= np.float32((query.shape[2] // num_heads) ** -0.5)
    scores += np.where(mask, np.float32(0), MASKED)[:, None, None]
    seen = np.exp(log_softmax(scores, 3)) @ heads(value)
    return seen.transpose(0, 2, 1, 3).reshape(query.shape)


def log_softmax(x: Array, axis: int) -> Array:
    shifted = x - x.max(axis, keepdims=True)
    out: Array = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
    return out


def log_sum_exp(x: Array, axes: Array, keepdims: int) -> Array:
    axis = tuple(axes)
    top = x.max(axis, keepdims=True)
    out: Array = (np.log(np.exp(x - top).sum(axis, keepdims=True)) + top).squeeze(axis)
    return out


def split(x: Array, sizes: Array | None = None, *, axis: int, num_outputs: int = 0) -> list[Array]:
    parts = num_outputs if sizes is None else np.cumsum(sizes)[:-1]
    return list(np.split(x, parts, axis))


def reshaped(x: Array, shape: Array) -> Array:
    """0: as it is."""
    return x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(shape.tolist())])


def shape_of(x: Array, start: int = 0, end: int | None = None) -> Array:
    return np.array(x.shape[start:end], np.int64)


OPERATORS: dict[str, Callable[..., Array | list[Array]]] = {
    "Add": np.add,
    "And": np.logical_and,
    "Cast": lambda x, to: x.astype(DTYPES[to]),
    "Concat": lambda *parts, axis: np.concatenate(parts, axis),
    "Div": np.divide,
    "DynamicQuantizeMatMul": rounded_product,
    "Expand": lambda x, shape: np.broadcast_to(x, shape),
    "Gather": lambda x, indices, axis: x.take(indices, axis),
    "Gelu": lambda x: x * (erf(x * np.float32(2**-0.5)) + np.float32(1)) * np.float32(0.5),
    "Identity": lambda x: x,
    "LayerNormalization": normalised,
    "LogSoftmax": log_softmax,
    "MatMul": np.matmul,
    "MatMulIntegerToFloat": whole_product,
    "MultiHeadAttention": attention,
    "QuantizeLinear": in_steps,
    "ReduceLogSumExp": log_sum_exp,
    "Reshape": reshaped,
    "Shape": shape_of,
    "Split": split,
    "Transpose": lambda x, perm: x.transpose(perm),
    "Trilu": lambda x, k, upper: np.triu(x, int(k)) if upper else np.tril(x, int(k)),
    "Unsqueeze": lambda x, axes: np.expand_dims(x, tuple(axes)),
    "Where": np.where,
}
