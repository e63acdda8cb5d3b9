"""Values that a person might give in Python, few of which mean anything: of numpy, PyTorch, pandas, SciPy, and objects
whose methods raise, lie, or never end."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import io
import itertools
import math
import pathlib
import types
import uuid
from collections import OrderedDict, UserList, deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from PIL import Image

Makers = Mapping[str, Callable[[], Any]]  # by how each is told


class Colour(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    TWO = 2


class Word(enum.StrEnum):
    CAT = "cat"


class Odd(int):
    """A number with ideas of its own."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("compared")

    def __repr__(self) -> str:
        raise ValueError("shown")

    __hash__ = int.__hash__


class Text(str):
    """A text with ideas of its own."""

    def __str__(self) -> str:
        return "another\ntext"

    __repr__ = __str__


class Liar(list):  # type: ignore[type-arg]
    """A list that is longer than it says."""

    def __len__(self) -> int:
        return 2


class Long:
    """What says that it is longer than anything."""

    def __len__(self) -> int:
        return 2**62

    def __getitem__(self, place: int) -> int:
        return 0


class Raising:
    """What raises whatever it is asked."""

    def _raise(self, *_: Any, **__: Any) -> Any:
        raise LookupError("asked\nand asked")

    __array__ = __len__ = __iter__ = __repr__ = __str__ = __bool__ = __eq__ = __getitem__ = __fspath__ = _raise
    __call__ = __contains__ = __int__ = __index__ = __float__ = __call__ = keys = items = _raise
    __hash__ = _raise

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class Bytes:
    """A path of bytes."""

    def __fspath__(self) -> bytes:
        return b"\xff\xfe"


class Subclass(torch.Tensor):
    """A tensor of anybody's."""


def _endless() -> Iterator[int]:
    return itertools.count()


def _itself() -> list[Any]:
    found: list[Any] = [1]
    found.append(found)
    return found


def _own_key() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["a"] = found
    return found


def _deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(3000):
        found = [found]
    return found


def _function(*given: Any) -> Any:
    raise LookupError("called")


PLAIN: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**62, -(2**63), 1.0, 0.5, -0.0, 1e-300, 1e308, math.nan, math.inf, 1j,
    "", " ", "x", "0", "1,2", "0-3", "\ud800", "\udcff", "a\nb", "\x1b[31m", "\0", "é" * 200, "naive", "data", "auto",
    "a/b", "..", "~", "~nobody", "cpu", "none", b"", b"bytes", [], (), {}, [None], [[]], [1, 2], (1, 2), ["a", "b"],
    [1, "a"], [1.5], ["\ud800"], [b"a"], [True, False], {"a": 1}, {1: 2}, {"a": {"b": [1]}}, {None: None}, {"": ""},
    {1, 2}, frozenset("ab"), range(3), range(10**12), slice(1, 2), Ellipsis, NotImplemented, print, int, type, types,
    Colour.RED, Number.TWO, Word.CAT, Colour,
)  # fmt: skip
ANYTHING: Makers = {
    **{repr(one): partial(lambda one: one, one) for one in PLAIN},
    "10**5000": lambda: 10**5000, "'x' * 10**6": lambda: "x" * 10**6, "'x' * 300": lambda: "x" * 300,
    "[10**400]": lambda: [10**400], "list of 10**6": lambda: [0] * 10**6, "a list in itself": _itself,
    "a dict in itself": _own_key, "3,000 lists in each other": _deep, "['x' * 10**6]": lambda: ["x" * 10**6],
    "Odd(3)": lambda: Odd(3), "Text('x')": lambda: Text("x"), "Liar([1] * 9)": lambda: Liar([1] * 9), "Long()": Long,
    "Raising()": Raising, "[Raising()]": lambda: [Raising()], "{'a': Raising()}": lambda: {"a": Raising()},
    "MagicMock()": MagicMock, "Bytes()": Bytes, "a function": lambda: _function, "object()": object,
    "a generator": lambda: (n for n in range(3)), "an endless generator": _endless,
    "zip": lambda: zip([1], [2], strict=True), "reversed": lambda: reversed([1, 2]), "map": lambda: map(str, [1, 2]),
    "deque": lambda: deque([1, 2]), "UserList": lambda: UserList([1, 2]), "OrderedDict": lambda: OrderedDict(a=1),
    "dict_keys": lambda: {"a": 1}.keys(),
    "memoryview": lambda: memoryview(b"abc"), "bytearray": lambda: bytearray(3), "BytesIO": lambda: io.BytesIO(b"abc"),
    "Decimal": lambda: decimal.Decimal("0.1"), "Fraction": lambda: fractions.Fraction(1, 3), "UUID": uuid.uuid4,
    "date": lambda: datetime.date(2020, 1, 1), "timedelta": lambda: datetime.timedelta(1),
    "Path('x')": lambda: pathlib.Path("x"), "Path('.')": pathlib.Path,
    "PureWindowsPath": lambda: pathlib.PureWindowsPath("x"),
    "Path('x' * 300)": lambda: pathlib.Path("x" * 300), "Path('\\ud800')": lambda: pathlib.Path("\ud800"),
    "'a' * 250 / 'b'": lambda: "a" * 250 + "/b", "'a/' * 3000": lambda: "a/" * 3000, "'x' * 255": lambda: "x" * 255,
    "a PIL image": lambda: Image.new("L", (4, 4)), "nn.Linear": lambda: torch.nn.Linear(2, 2), "mappingproxy": lambda:
        types.MappingProxyType({"a": 1}), "SimpleNamespace": lambda: types.SimpleNamespace(a=1),
}  # fmt: skip
NUMPY = ("?", "i1", "u1", "<i2", ">i2", ">u2", "i4", ">i4", "i8", ">i8", "u8", "f2", "f4", ">f4", "f8", ">f8", "g", "F",
         "D", "G", "U3", ">U3", "S3", "O", "M8[s]", "M8[ns]", "m8[s]", "V4", "i4,f4")  # fmt: skip
TORCH = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
         torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex32,
         torch.float8_e4m3fn, torch.float8_e5m2)  # fmt: skip


def forms(array: np.ndarray[Any, Any]) -> Makers:
    """Forms of an array: its numbers in other types, orders and containers, and what only seems to hold them."""
    tensor = torch.from_numpy(array.copy())
    return {
        **_of_scipy(array),
        **_of_pandas(array),
        **{f"dtype {name}": (lambda name=name: array.astype(name)) for name in NUMPY},  # type: ignore[misc]
        **{str(kind): (lambda kind=kind: tensor.to(kind)) for kind in TORCH},  # type: ignore[misc]
        "as it is": lambda: array,
        "a list": array.tolist,
        "a tuple": lambda: tuple(array.tolist()),
        "a list of arrays": lambda: list(array),
        "a list of tensors": lambda: list(tensor),
        "a tensor": lambda: tensor,
        "Fortran's order": lambda: np.asfortranarray(array),
        "backwards": lambda: array[::-1],
        "[:0]": lambda: array[:0],
        "[:-1]": lambda: array[:-1],
        "[None]": lambda: array[None],
        "[..., None]": lambda: array[..., None],
        "one of it": lambda: array[0],
        "every second twice": lambda: np.repeat(array[::2], 2, axis=0),
        "flat": array.ravel,
        "read-only": lambda: np.broadcast_to(array, array.shape),
        "0-d": lambda: np.array(3),
        "broadcast": lambda: np.broadcast_to(array[:1], (9 * 10**10, *array.shape[1:])),
        "broadcast to the same length": lambda: np.broadcast_to(array[:1], array.shape),
        "broadcast wide": lambda: np.broadcast_to(array.reshape(len(array), -1, 1)[:, :1], (len(array), 10**6, 10**6)),
        "masked": lambda: np.ma.masked_equal(array, array.flat[0]),
        "masked nowhere": lambda: np.ma.array(array),
        "np.matrix": lambda: np.matrix(array.reshape(len(array), -1)),
        "recarray": lambda: array.astype("i4,f4").view(np.recarray),
        "object": lambda: array.astype(object),
        "object of None": lambda: np.full(array.shape, None),
        "object of NaN": lambda: np.full(array.shape, math.nan, object),
        "object of arrays": lambda: _objects(array),
        "object of Raising": lambda: np.array([Raising() for _ in array] + [None], object)[:-1],
        "object of Enum": lambda: np.full(array.shape, Number.TWO, object),
        "object of str": lambda: array.astype(str).astype(object),
        "object of 10**400": lambda: np.full(array.shape, 10**400, object),
        "2**62": lambda: np.full(array.shape, 2**62),
        "StringDType": lambda: array.astype(str).astype(np.dtypes.StringDType()),
        "memoryview": lambda: array.data,
        "NaN": lambda: np.full(array.shape, math.nan),
        "inf": lambda: np.full(array.shape, math.inf, np.float32),
        "negative": lambda: -array.astype(float),
        "0 to 1": lambda: array / 255,
        "1e300": lambda: np.full(array.shape, 1e300),
        "-0.0": lambda: np.full(array.shape, -0.0),
        "denormal": lambda: np.full(array.shape, 5e-324),
        "bytes": array.tobytes,
        "sparse": tensor.to_sparse,
        "meta": lambda: tensor.to("meta"),
        "expanded": lambda: tensor[:1].expand(10**11, *tensor.shape[1:]),
        "requires_grad": lambda: tensor.double().requires_grad_(),
        "a graph": lambda: tensor.double().requires_grad_() * 2,
        "transposed": lambda: tensor.flip(0),
        "conj": lambda: tensor.to(torch.complex64).conj(),
        "Subclass": lambda: tensor.as_subclass(Subclass),
        "Parameter": lambda: torch.nn.Parameter(tensor.float()),
        "quantized": lambda: torch.quantize_per_tensor(tensor.float(), 1, 0, torch.quint8),
        "neg": lambda: torch.imag(tensor.to(torch.complex64).conj()),
        "channels_last": lambda: tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor,
        "nested": lambda: torch.nested.nested_tensor(list(tensor.float())) if tensor.ndim > 1 else tensor.to_sparse(),
        "jagged": lambda: (
            torch.nested.nested_tensor(list(tensor.float()), layout=torch.jagged) if tensor.ndim > 1 else tensor
        ),
        "csr": lambda: tensor.reshape(len(tensor), -1).to_sparse_csr(),
        "a generator": lambda: (one for one in array),
        "an iterator": lambda: iter(array.tolist()),
        "a dict": lambda: dict(enumerate(array)),
        "a set": lambda: set(array.ravel().tolist()),
        "ragged": lambda: [array[0].tolist(), *([1],) * (len(array) - 1)],
        "strings": lambda: [str(one) for one in array],
        "a list of bytes": lambda: [b"a"] * len(array),
        "a list of None": lambda: [None] * len(array),
        "Words": lambda: [Word.CAT, "dog"] * (len(array) // 2),
        "names": lambda: ["cat", "dog"] * (len(array) // 2),
        "names and numbers": lambda: ["cat", 1] * (len(array) // 2),
        "Texts": lambda: [Text("a"), "b"] * (len(array) // 2),
        "surrogates": lambda: ["\ud800", "b"] * (len(array) // 2),
        "long names": lambda: ["x" * 10**5, "b"] * (len(array) // 2),
        "a list with NaN": lambda: [math.nan, 1.0] * (len(array) // 2),
        "a list of bools": lambda: [True, False] * (len(array) // 2),
        "2**70": lambda: [2**70, 1] * (len(array) // 2),
        "an object of __array__": lambda: _Array(array),
        "Liar": lambda: Liar(array.tolist()),
        "deque": lambda: deque(array.tolist()),
    }


class _Array:
    """What numpy can take, and nothing else can."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return self._array.astype(dtype) if dtype else self._array


def _objects(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    found = np.empty(len(array), object)
    for place, one in enumerate(array):
        found[place] = one
    return found


def _of_scipy(array: np.ndarray[Any, Any]) -> Makers:
    import scipy.sparse as sparse  # which scikit-learn brings

    flat = array.reshape(len(array), -1)
    kinds = ("csr_matrix", "csr_array", "coo_array", "lil_matrix", "dok_array")
    return {kind: (lambda kind=kind: getattr(sparse, kind)(flat)) for kind in kinds}  # type: ignore[misc]


def _of_pandas(array: np.ndarray[Any, Any]) -> Makers:
    try:
        import pandas
    except ImportError:
        return {}
    flat = array.reshape(len(array), -1)
    column = flat[:, 0]
    return {
        "DataFrame": lambda: pandas.DataFrame(flat),
        "Series": lambda: pandas.Series(column),
        "Index": lambda: pandas.Index(column),
        "Series of another index": lambda: pandas.Series(column, index=range(5, 5 + len(column))),
        "an empty DataFrame": pandas.DataFrame,
        "Categorical": lambda: pandas.Categorical(column.astype(str)),
        "Series of Categorical": lambda: pandas.Series(column).astype("category"),
        "Int64 with NA": lambda: pandas.Series([pandas.NA, *column[1:]], dtype="Int64"),
        "string": lambda: pandas.Series(column).astype("string"),
        "boolean": lambda: pandas.Series(column > 1, dtype="boolean"),
        "Timestamps": lambda: pandas.Series(pandas.to_datetime(column)),
        "NaT": lambda: pandas.Series([pandas.NaT] * len(column)),
        "MultiIndex": lambda: pandas.MultiIndex.from_arrays([column, column]),
        "DataFrame of names": lambda: pandas.DataFrame({"a": ["cat", "dog"] * (len(column) // 2)}),
        "Sparse": lambda: pandas.Series(column).astype(pandas.SparseDtype("float")),
        "a mixed DataFrame": lambda: pandas.DataFrame({"a": column, "b": "x"}),
    }
