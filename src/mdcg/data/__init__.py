"""Where images come from. Knows nothing of tasks, methods or devices."""

from mdcg.data.dataset import Dataset, Split
from mdcg.data.load import DATASETS, load, verify

__all__ = ["DATASETS", "Dataset", "Split", "load", "verify"]
