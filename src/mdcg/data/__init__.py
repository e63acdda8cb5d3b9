"""The sources of images. They know nothing of tasks, methods or devices."""

from mdcg.data.cifar import CIFAR10, CIFAR100
from mdcg.data.content import Arrays, arrays
from mdcg.data.dataset import Dataset, Split
from mdcg.data.digits import DIGITS
from mdcg.data.eurosat import EUROSAT
from mdcg.data.folder import FOLDERS
from mdcg.data.images import ImageReader
from mdcg.data.load import load, verify
from mdcg.data.mnist import FASHION_MNIST, MNIST
from mdcg.data.published import Downloaded, Published, PublishedFiles
from mdcg.data.record import Bundled, DatasetRecord, Preprocessing, Protocol
from mdcg.data.registry import DATASETS, is_known, record_of, register_dataset
from mdcg.data.source import read as read_files
from mdcg.data.svhn import SVHN
from mdcg.data.tinyimagenet import TINYIMAGENET
from mdcg.pixels.decode import ImageFormat

__all__ = [
    "DATASETS",
    "Arrays",
    "Bundled",
    "Dataset",
    "DatasetRecord",
    "Downloaded",
    "ImageFormat",
    "ImageReader",
    "Preprocessing",
    "Protocol",
    "Published",
    "PublishedFiles",
    "Split",
    "arrays",
    "is_known",
    "load",
    "read_files",
    "record_of",
    "register_dataset",
    "verify",
]

# In the order in which they are listed.
for _record in (DIGITS, CIFAR10, CIFAR100, TINYIMAGENET, MNIST, FASHION_MNIST, SVHN, EUROSAT, FOLDERS):
    register_dataset(_record)
