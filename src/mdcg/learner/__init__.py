"""A classifier that learns new classes as they arrive, is saved, taken up again and shipped."""

from mdcg.learner.estimator import Learner

__all__ = ["Learner"]
