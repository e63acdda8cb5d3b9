"""The checks for authors of methods, backbones and datasets, each in one line of pytest.

    def test_mine() -> None:
        check_method(Mine)

A check trains tiny groups on a CPU, for some seconds, and raises an AssertionError with one sentence that says what is
wrong and what to do. mdcg's own parts are held to the same.
"""

from mdcg.testing.backbones import check_backbone
from mdcg.testing.datasets import check_dataset
from mdcg.testing.groups import toy_dataset, toy_group
from mdcg.testing.methods import check_method

__all__ = ["check_backbone", "check_dataset", "check_method", "toy_dataset", "toy_group"]
