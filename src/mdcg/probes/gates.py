"""The probe for gates: how far they close, how far their weights moved, and how many predictions depend on them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mdcg.draws import Ints
from mdcg.methods import Method
from mdcg.models import Head, Model
from mdcg.models.heads import CascadedGates
from mdcg.models.layers import Linear
from mdcg.probes.base import PROBES, Measured, Probe, Snapshot


@PROBES.register("gates")
class Gates(Probe):
    """How far gates close, how far their weights moved, and how many predictions they change, as each task ends."""

    def wants(self, task: int, epoch: int, epochs: int) -> bool:
        return task > 0 and epoch == epochs

    def unsuited(self, method: Method, head: type[Head]) -> str | None:
        return None if issubclass(head, CascadedGates) else "its head has no gates"

    @torch.no_grad()
    def look(self, snapshot: Snapshot) -> Measured:
        """Measure all gates so far, on the evaluated images of all classes so far.

        How far closed a gate is, one less its opening, which keeps its digits where a gate is almost open:
        `closed_mean`, `closed_largest`, and `closed_product`, the largest of 1 − the product of a class's gates.
        How far weights and biases have moved since they were initialised: `gates_moved_largest` and
        `gates_moved_rms`, and for scale those of the classifier, `classifier_moved_…`. How many predictions, among
        the classes seen, are `changed` when all gates are set to 1, of how many `images`; and the `accuracy`, in
        percent, with the gates and `accuracy_without` them.
        """
        head, first = snapshot.model.head, untrained(snapshot)
        assert isinstance(head, CascadedGates)
        images = snapshot.test(range(snapshot.seen))
        # Each member by itself and in double precision: what is told apart here are small numbers.
        found = [
            {
                **_measure_gates(head, k, features.double(), labels),
                **_moved("gates", head.gates, first.gates, k),
                **_moved("classifier", head.classifier, first.classifier, k),
            }
            for k, (features, labels) in enumerate(zip(snapshot.features(images), images.labels, strict=True))
        ]
        return {key: [own[key] for own in found] for key in found[0]}


def untrained(snapshot: Snapshot) -> CascadedGates:
    """Make the head anew with its initial weights, from the members' seeds."""
    head, members = snapshot.model.head, snapshot.group.members
    settings = {name: [member.head_settings[name] for member in members] for name in head.settings}
    again = type(head)(len(members), head.classifier.weight.shape[1], **settings)
    assert isinstance(again, CascadedGates)
    alone = Model(nn.Identity(), again, snapshot.model.seeds).to(head.classifier.weight)
    for classes in head.sizes:
        alone.grow(classes)
    return again


def _measure_gates(head: CascadedGates, k: int, features: Tensor, labels: Ints) -> dict[str, float]:
    """Measure one member's predictions for images (n, features), with its gates and without."""
    logits = _of_member(head.classifier, k, features)
    openings = head.log_openings(_of_member(head.gates, k, features), k)
    closed = -torch.expm1(openings)
    products = head.add_up(openings)  # as logarithms
    has_gates = head.add_up(torch.ones_like(openings[:1]))[0] > 0  # others have a product of 1
    gated, plain = (logits * products.exp()).argmax(1), logits.argmax(1)
    truth = torch.from_numpy(labels).to(plain.device)
    return {
        "closed_mean": float(closed.mean()),
        "closed_largest": float(closed.amax()),
        "closed_product": float(-torch.expm1(products[:, has_gates]).amin()),
        "changed": int((gated != plain).sum()),
        "images": len(labels),
        "accuracy": float(100 * (gated == truth).double().mean()),
        "accuracy_without": float(100 * (plain == truth).double().mean()),
    }


def _of_member(layer: Linear, k: int, features: Tensor) -> Tensor:
    return features @ layer.weight[k].double() + layer.bias[k].double()


def _moved(name: str, now: Linear, then: Linear, k: int) -> dict[str, float]:
    pairs = ((now.weight[k], then.weight[k]), (now.bias[k], then.bias[k]))
    change = torch.cat([(new.double() - old.double()).flatten() for new, old in pairs])
    return {
        f"{name}_moved_largest": float(change.abs().amax()),
        f"{name}_moved_rms": float(change.square().mean().sqrt()),
    }
