"""Training: the loop, augmentation, optimiser, precision, checkpoints and progress. Knows no method by name."""
