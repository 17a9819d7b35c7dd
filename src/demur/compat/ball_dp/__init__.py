"""The interface of `quantbayes.ball_dp`, over demur's engine, mechanism and ledger.

Change the import lines and keep the code. `docs/compat_ball_dp.md` lists what behaves
differently, and why. In short: noise comes from the operating system and is recorded
before it is drawn, `sigma_method="classic"` above epsilon 1 raises, heads are trained
in float64, and a release names what it is conditional on.
"""

from demur.compat.ball_dp.adjacency import BallAdjacency as BallAdjacency
from demur.compat.ball_dp.api import EmbeddingBundle as EmbeddingBundle
from demur.compat.ball_dp.api import RadiusPolicy as RadiusPolicy
from demur.compat.ball_dp.api import compute_radius_policy as compute_radius_policy
from demur.compat.ball_dp.api import (
    dp_release_erm_params_gaussian as dp_release_erm_params_gaussian,
)
from demur.compat.ball_dp.api import embed_torch_dataloaders as embed_torch_dataloaders
from demur.compat.ball_dp.api import load_embeddings_npz as load_embeddings_npz
from demur.compat.ball_dp.api import save_embeddings_npz as save_embeddings_npz
from demur.compat.ball_dp.lz import lz_logistic_binary_bound as lz_logistic_binary_bound
from demur.compat.ball_dp.lz import lz_prototypes_exact as lz_prototypes_exact
from demur.compat.ball_dp.lz import lz_softmax_linear_bound as lz_softmax_linear_bound
from demur.compat.ball_dp.mechanisms import add_gaussian_noise as add_gaussian_noise
from demur.compat.ball_dp.mechanisms import gaussian_sigma as gaussian_sigma
from demur.compat.ball_dp.radius import coverage_curve as coverage_curve
from demur.compat.ball_dp.radius import (
    dp_quantile_exponential_mechanism as dp_quantile_exponential_mechanism,
)
from demur.compat.ball_dp.radius import radii_from_percentiles as radii_from_percentiles
from demur.compat.ball_dp.radius import (
    within_class_nn_distances as within_class_nn_distances,
)
from demur.compat.ball_dp.sensitivity import erm_sensitivity_l2 as erm_sensitivity_l2
