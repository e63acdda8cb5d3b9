"""Trackers: other programs that show runs as they train. A user's own is registered in TRACKERS, or comes with a
package that has an entry point in the group `mdcg.trackers`.
"""

from mdcg.trackers import mlflow, tensorboard  # noqa: F401 (each registers itself)
from mdcg.trackers.base import TRACKERS, Epoch, Outcome, SettingValue, TrackedRun, Tracker
from mdcg.trackers.tracker_set import TrackerSet

__all__ = ["TRACKERS", "Epoch", "Outcome", "SettingValue", "TrackedRun", "Tracker", "TrackerSet"]
