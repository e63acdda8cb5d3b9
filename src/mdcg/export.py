"""A trained classifier as a file that needs no mdcg: ONNX for any runtime, `torch.export` for PyTorch."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import json
import logging
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from mdcg.errors import MdcgError
from mdcg.extras import extra
from mdcg.models import Model
from mdcg.models.stacked import Stacked
from mdcg.outputs import Kind, Output
from mdcg.train.augment import Pixels

TOLERANCE = 1e-4  # of a probability, between a file and the module that it was made from
ABOUT = "Image classifier."  # what a description in a file begins with
END = b"PK\5\6"  # of a zip archive: the beginning of its last 22 bytes
CHATTER = ("torch", "torch._dynamo", "torch.onnx", "onnxscript", "onnx_ir")  # loggers with a level of their own

logger = logging.getLogger(__name__)


class Classifier(nn.Module):
    """One trained member from pixels to probabilities: nothing is left to do outside but to resize images.

    uint8 images (n, height, width, channels) in, float32 probabilities (n, classes) out, those of the classes learned
    so far. It has its own copy of the weights, on the CPU.

    >>> from mdcg.models import build_model
    >>> model = build_model("smallconv", "incremental", (1, 8, 8), seeds=[0])
    >>> model.grow(2)
    >>> Classifier(model, mean=(0.3,), std=(0.4,), classes=2)(torch.zeros(5, 8, 8, 1, dtype=torch.uint8)).shape
    torch.Size([5, 2])
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, model: Model, mean: tuple[float, ...], std: tuple[float, ...], classes: int) -> None:
        super().__init__()
        if len(model.seeds) != 1:
            raise MdcgError(f"a classifier is made of one member, not of {len(model.seeds)}; choose one of them.")
        self.mean, self.std, self.white, self.classes = mean, std, 255, classes
        pixels = Pixels.of(self, torch.device("cpu"), torch.float32)
        self.register_buffer("scale", pixels.scale)
        self.register_buffer("shift", pixels.shift)
        body = model.backbone
        self.backbone = body.member(0) if isinstance(body, Stacked) else _Alone(copy.deepcopy(body))
        self.head = copy.deepcopy(model.head)
        self.cpu().float().eval().requires_grad_(False)
        for parameter in self.parameters():  # kernels of ours lie in another order, which a file cannot hold
            parameter.data = parameter.data.contiguous()

    def forward(self, images: Tensor) -> Tensor:
        pixels = Pixels(self.scale, self.shift, 0, torch.float32).normalise(images)
        # Not by `Model.forward`, whose autocast would become part of the file.
        logits: Tensor = self.head(self.backbone(pixels).float()[None])
        return logits[0, :, : self.classes].softmax(-1)


class _Alone(nn.Module):
    """A backbone of ours with a single member, without the member axis: as a user's own is.

    That axis is gone before the head adds its own, so that onnxruntime sees no transposition before the head's
    product: it would fuse the two, and then die of a batch without images.
    """

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.backbone(images[None])
        return features[0]


def export_onnx(
    classifier: Classifier,
    path: Path | str,
    shape: tuple[int, int, int],
    class_names: Sequence[str],
    force: bool = False,
) -> None:
    """Write an ONNX file that classifies any number of images of `shape`, (channels, height, width).

    Its input is `images`, its output `probabilities`, both as the classifier's; its metadata are `classes`, the names
    as a JSON list in the order of the probabilities, `shape`, that of an image as the file takes it, and a
    `description`. Where onnxruntime is installed, nothing is written unless it computes what the classifier does.
    """
    extra("onnx", "export", "an ONNX file")
    output = Output(Path(path), FORMATS["onnx"], force)
    output.check()
    op = extra("onnxscript", "export", "an ONNX file").opset18

    def log_sigmoid(x: Any) -> Any:
        """The exporter's own is log(sigmoid(x)): minus infinity for a closed gate, and then no number at all."""
        return op.Neg(op.Softplus(op.Neg(x)))

    about = _metadata(classifier, shape, class_names)
    with _exporting("ONNX"):
        program = torch.onnx.export(
            _traced(classifier, shape),
            dynamo=True,
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes={"images": {0: "batch"}},
            custom_translation_table={torch.ops.aten.log_sigmoid.default: log_sigmoid},
            optimize=True,
            verbose=False,
        )
        assert program is not None  # it is only for the older exporter
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()  # lines of source code and where they lie on this machine
        program.model.metadata_props.update(about)
        content = program.model_proto.SerializeToString()
        if importlib.util.find_spec("onnxruntime"):
            _check(_onnxruntime(content), classifier, shape)
        else:
            logger.info("onnxruntime is not installed: %s is written unchecked", path)
    output.write(content)


def export_torch(
    classifier: Classifier,
    path: Path | str,
    shape: tuple[int, int, int],
    class_names: Sequence[str],
    force: bool = False,
) -> None:
    """Write a file, .pt2 by custom, for `torch.export.load`: a program that classifies any number of images of `shape`.

    The same metadata as of an ONNX file are in its `extra_files`. Nothing is written unless the file computes what the
    classifier does.
    """
    output = Output(Path(path), FORMATS["torch"], force)
    output.check()
    about = _metadata(classifier, shape, class_names)
    with _exporting("torch.export"):
        program = _traced(classifier, shape)
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # lines of source code and where they lie on this machine
        file = io.BytesIO()
        torch.export.save(program, file, extra_files=about)
        content = file.getvalue()
        _check(torch.export.load(io.BytesIO(content)).module(), classifier, shape)
    output.write(content)


def _is_onnx(file: BinaryIO) -> bool:
    model = extra("onnx", "export", "an ONNX file").load_model_from_string(file.read())
    return _is_about({entry.key: entry.value for entry in model.metadata_props})


def _is_torch(file: BinaryIO) -> bool:
    file.seek(-len(END) - 18, os.SEEK_END)
    if not file.read().startswith(END):
        return False  # it is no archive, or something was added to it
    with zipfile.ZipFile(file) as archive:
        extras = [name for name in archive.namelist() if PurePosixPath(name).parent.name in ("extra", "extra_files")]
        about = {}
        for name in extras:
            with archive.open(name) as one:
                about[PurePosixPath(name).name] = one.read(len(ABOUT)).decode("utf-8", "replace")
    return _is_about(about)


def _is_about(found: Mapping[str, str]) -> bool:
    """Whether these are metadata of ours, and nobody has added any."""
    return set(found) == {"classes", "shape", "description"} and found["description"].startswith(ABOUT)


FORMATS = {
    "onnx": Kind.told_by("an ONNX file that mdcg has exported", _is_onnx),
    "torch": Kind.told_by("a torch.export file that mdcg has exported", _is_torch),
}


def _metadata(classifier: Classifier, shape: tuple[int, int, int], class_names: Sequence[str]) -> dict[str, str]:
    if len(class_names) != classifier.classes:
        raise MdcgError(
            f"the classifier knows {classifier.classes:,} classes, but {len(class_names):,} names are given; "
            "give one for each, in the order in which they were learned."
        )
    channels, height, width = shape
    return {
        "classes": json.dumps(list(class_names), ensure_ascii=False),
        "shape": json.dumps([height, width, channels]),
        "description": (
            f"{ABOUT} Input: uint8 pixels from 0 to 255, (n, {height}, {width}, {channels}). "
            f"Output: probabilities, (n, {classifier.classes}), in the order of 'classes'."
        ),
    }


def _traced(classifier: Classifier, shape: tuple[int, int, int]) -> ExportedProgram:
    channels, height, width = shape
    images = torch.zeros(2, height, width, channels, dtype=torch.uint8)  # a single one would be taken for a constant
    shapes = {"images": {0: torch.export.Dim("batch")}}
    try:
        return torch.export.export(classifier.eval(), (images,), dynamic_shapes=shapes, strict=False)
    except Exception:  # to Python, `len(images)` is always a number: only by reading the code can it stay open
        return torch.export.export(classifier, (images,), dynamic_shapes=shapes, strict=True)


def _onnxruntime(content: bytes) -> Callable[[Tensor], Tensor]:
    """A function that computes what an ONNX file says."""
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def answer(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])

    return answer


def _check(answer: Callable[[Tensor], Tensor], classifier: Classifier, shape: tuple[int, int, int]) -> None:
    """Compare a file's answers with the classifier's, for one random image and for several."""
    channels, height, width = shape
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, height, width, channels), dtype=torch.uint8, generator=rng)
    for batch in (images[:1], images):
        found, expected = answer(batch), classifier(batch)
        if not torch.isclose(found, expected, rtol=0, atol=TOLERANCE, equal_nan=True).all():
            raise MdcgError(
                f"the exported network does not compute what the classifier does: its probabilities differ by up to "
                f"{(found - expected).abs().max():.2g}. Nothing was written; try the other format."
            )


@contextlib.contextmanager
def _exporting(kind: str) -> Iterator[None]:
    """Keep exporters quiet; whatever they raise becomes one sentence."""
    loggers = [logging.getLogger(name) for name in CHATTER]
    levels = [chatty.level for chatty in loggers]
    for chatty in loggers:
        chatty.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except MdcgError:
        raise
    except Exception as error:  # whatever the exporters, or a user's network under their eyes, may raise
        cause: BaseException = error
        while cause.__cause__ is not None:  # theirs are wrapped in advice for developers
            cause = cause.__cause__
        line = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        reason = line.partition(" For more information")[0].rstrip(".!")
        raise MdcgError(
            f"the network cannot be exported to {kind}: {reason}. It may use only operations that {kind} knows, "
            "and must not decide anything by the pixels or by the number of images."
        ) from error
    finally:
        for chatty, level in zip(loggers, levels, strict=True):
            chatty.setLevel(level)
