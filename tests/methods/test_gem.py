"""GEM's projection against solvers that know nothing of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import solve_triangular
from scipy.optimize import minimize, nnls
from torch import Tensor

from mdcg.methods.gem import PIECE, RIDGE, Gem, complementary, past_weights


def a_problem(members: int, tasks: int, parameters: int, seed: int, alike: float) -> tuple[Tensor, Tensor]:
    """Gradients g (K, P) and G (K, tasks, P); the more `alike`, the nearer to parallel those of past tasks are."""
    generator = torch.Generator().manual_seed(seed)
    own = torch.randn(members, tasks, parameters, generator=generator, dtype=torch.float64)
    common = torch.randn(members, 1, parameters, generator=generator, dtype=torch.float64)
    past = (1 - alike) * own + alike * common
    return torch.randn(members, parameters, generator=generator, dtype=torch.float64) - alike * common[:, 0], past


def solved(g: Tensor, G: Tensor, strength: float) -> list[float]:
    """v by scipy: with Q = L Lᵀ, ½ zᵀQz + qᵀz is ½ ‖Lᵀz + L⁻¹q‖² but for a constant."""
    along, Q = (G @ g).numpy(), (G @ G.T).numpy() + RIDGE * np.eye(len(G))
    if (along >= 0).all():
        return [0.0] * len(G)
    L = np.linalg.cholesky(Q)
    q = along + Q @ np.full(len(G), strength)
    z, _ = nnls(L.T, -solve_triangular(L, q, lower=True))
    return [strength + float(own) for own in z]


@given(
    st.integers(1, 3), st.integers(1, 9), st.integers(10, 40), st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 0.9])
)
def test_projection_is_that_of_an_independent_solver(
    members: int, tasks: int, parameters: int, seed: int, alike: float
) -> None:
    g, G = a_problem(members, tasks, parameters, seed, alike)
    strengths = [0.5 * k for k in range(members)]
    found = past_weights(g, G, torch.tensor(strengths, dtype=torch.float64))
    for k, strength in enumerate(strengths):
        np.testing.assert_allclose(found[k].numpy(), solved(g[k], G[k], strength), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("tasks", [19, 49])
def test_many_tasks(tasks: int) -> None:
    g, G = a_problem(2, tasks, 200, tasks, 0.6)
    found = past_weights(g, G, 0.5)
    for k in range(2):
        np.testing.assert_allclose(found[k].numpy(), solved(g[k], G[k], 0.5), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_no_nearer_gradient_harms_nobody(seed: int) -> None:
    """γ = 0, in the primal: of all g̃ with G g̃ ≥ 0 the nearest to g, but for the ridge."""
    g, G = (20 * part for part in a_problem(1, 3, 8, seed, 0.7))
    projected = Gem(strength=0.0).combine(g, G)
    nearest = minimize(
        lambda x: ((x - g[0].numpy()) ** 2).sum(),
        g[0].numpy(),
        constraints={"type": "ineq", "fun": lambda x: G[0].numpy() @ x},
        tol=1e-12,
    ).x
    assert (G[0] @ g[0]).min() < 0  # it does contradict a past task
    assert (G[0] @ projected[0]).min() > -1e-3 * G[0].norm() * g[0].norm()
    np.testing.assert_allclose(projected[0].numpy(), nearest, rtol=1e-3, atol=1e-3)


def test_a_harmless_gradient_is_followed_as_it_is() -> None:
    g, G = a_problem(2, 4, 30, 0, 0.0)
    G = G * torch.sign((G * g[:, None]).sum(2, keepdim=True))
    assert torch.equal(Gem().combine(g, G), g)
    harmed = G.clone()
    harmed[1, 2] *= -1  # only the second member is turned
    turned = Gem().combine(g, harmed)
    assert torch.equal(turned[0], g[0])
    assert not torch.equal(turned[1], g[1])


@pytest.mark.parametrize("strength", [0.0, 0.5])
def test_a_gradient_at_right_angles_harms_nobody(strength: float) -> None:
    """The condition is g·g_k ≥ 0: at exactly 0 it holds, and the gradient is followed as it is."""
    g = torch.tensor([[1.0, 0.0, 2.0]])
    past = torch.tensor([[[0.0, 3.0, 0.0], [1.0, 0.0, 0.0], [2.0, 1.0, -1.0]]])
    assert (past[0] @ g[0]).tolist() == [0.0, 1.0, 0.0]
    assert torch.equal(Gem(strength=strength).combine(g, past), g)


def test_gradients_that_vanish() -> None:
    """All images of the memory are known to perfection: nothing to protect, nothing breaks."""
    g, G = a_problem(1, 3, 10, 1, 0.0)
    assert torch.equal(Gem().combine(g, 0 * G), g)


def test_long_gradients_are_multiplied_in_pieces() -> None:
    """Each more than a piece and not a whole number of them; float32 and TF32's setting are no excuse."""
    g, G = a_problem(3, 5, 3 * PIECE + 7, 2, 0.3)
    torch.set_float32_matmul_precision("high")
    try:
        found = past_weights(g.float(), G.float(), 0.5)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert found.dtype == torch.float32
    for k in range(3):
        np.testing.assert_allclose(found[k].numpy(), solved(g[k], G[k], 0.5), rtol=1e-4, atol=1e-5)


@given(st.integers(1, 12), st.integers(0, 10**6))
def test_complementary(n: int, seed: int) -> None:
    """z ≥ 0, M z + q ≥ 0, and one of the two is zero in every place."""
    rng = np.random.default_rng(seed)
    A = torch.from_numpy(rng.normal(size=(4, n, n)))
    M, q = A @ A.mT + 0.01 * torch.eye(n, dtype=torch.float64), torch.from_numpy(rng.normal(size=(4, n)))
    z = complementary(M, q)
    w = (M @ z[..., None])[..., 0] + q
    assert z.min() >= 0
    assert w.min() > -1e-7
    assert (z * w).abs().max() < 1e-6


def test_the_papers_strength() -> None:
    assert Gem().strength == 0.5  # as GEM's authors; the paper names none
