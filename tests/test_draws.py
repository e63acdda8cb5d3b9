"""All randomness: what it is keyed by is part of every result that anybody has."""

from __future__ import annotations

import numpy as np

from mdcg.draws import Purpose, stream

#: Never change a number here: results, archives and models that exist hang on it. New purposes get new numbers.
NUMBERS = {
    "BACKBONE": 1, "HEAD": 2, "GATES": 3, "ORDER": 4, "CROP": 5, "FLIP": 6, "KEEP": 7, "REPLAY": 8, "HOLD_OUT": 9,
    "TEST_SPLIT": 10, "KEEP_SECOND": 11, "REFRESH": 12, "REFRESH_SECOND": 13, "KEEP_HELD_OUT": 14, "RETURN": 20,
    "BLUR": 21, "RESERVOIR": 22, "JITTER": 40, "RAND_AUGMENT": 41, "MIX": 42, "PARTNER": 43,
}  # fmt: skip


def test_the_numbers_of_purposes_stay() -> None:
    assert {purpose.name: purpose.value for purpose in Purpose} == NUMBERS


def test_a_stream_is_keyed_by_seed_purpose_task_and_epoch_in_this_order() -> None:
    by_hand = np.random.Generator(np.random.Philox(np.random.SeedSequence((3, 5, 1, 2))))
    assert stream(3, Purpose.CROP, 1, 2).random(4).tolist() == by_hand.random(4).tolist()
    assert stream(3, Purpose.CROP).random() == stream(3, Purpose.CROP, 0, 0).random()
