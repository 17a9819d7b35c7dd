"""The interface of ball_dp: (module, name, signature) as its users call it.

A signature is written as in a `def` line, annotations left out. Ours may have more
keyword-only parameters with defaults, and nothing less.
"""

PACKAGE = "demur.compat.ball_dp"

EXPORTS = """
BallAdjacency gaussian_sigma add_gaussian_noise erm_sensitivity_l2 lz_prototypes_exact
lz_logistic_binary_bound lz_softmax_linear_bound within_class_nn_distances
radii_from_percentiles coverage_curve dp_quantile_exponential_mechanism EmbeddingBundle
RadiusPolicy embed_torch_dataloaders save_embeddings_npz load_embeddings_npz
compute_radius_policy dp_release_erm_params_gaussian
""".split()

_RELEASE = "lz, r, lam, n, eps, delta"
_EMBED = 'device="cuda", l2_normalize=False, l2_clip_norm=None, encode_fn=None'

FUNCTIONS = [
    ("metrics", "l2_dist", "a, b"),
    ("metrics", "l2_norms", "Z"),
    ("metrics", "maybe_l2_normalize", "Z, enabled, eps=1e-12"),
    ("metrics", "clip_l2_rows", "Z, max_norm, eps=1e-12"),
    (
        "radius",
        "within_class_nn_distances",
        "Z, y, *, num_classes, per_class=400, seed=0",
    ),
    (
        "radius",
        "within_class_nn_pairs",
        "Z, y, *, num_classes, per_class=400, seed=0",
    ),
    (
        "radius",
        "per_class_tail_stats_from_nn_pairs",
        "pairs, *, r, thresholds=(1.25, 1.5)",
    ),
    ("radius", "top_outlier_pairs", "pairs, *, top_k=12"),
    ("radius", "radii_from_percentiles", "nn_dists, percentiles"),
    ("radius", "coverage_curve", "nn_dists, radii"),
    (
        "radius",
        "dp_quantile_exponential_mechanism",
        "values, quantile, eps, *, rng=None",
    ),
    ("sensitivity", "erm_sensitivity_l2", "*, lz, r, lam, n"),
    ("lz", "lz_prototypes_exact", ""),
    ("lz", "lz_logistic_binary_bound", "*, B, lam, include_bias=True"),
    ("lz", "lz_softmax_linear_bound", "*, B, lam, include_bias=True"),
    ("lz", "lz_glm_data_independent_bound", "*, A, L, B, lam, include_bias=True"),
    ("lz", "lz_squared_hinge_bound", "*, B, lam, include_bias=True"),
    ("lz", "estimate_lz_empirical_torch", "grad_fn, *, pairs, metric, eps=1e-12"),
    (
        "mechanisms",
        "gaussian_sigma",
        'delta_l2, eps, delta, *, method="classic", tol=1e-12',
    ),
    ("mechanisms", "add_gaussian_noise", "x, sigma, *, rng=None"),
    (
        "analytical_gaussian_mechanism",
        "calibrate_analytic_gaussian",
        "*, epsilon, delta, GS, tol=1e-12",
    ),
    ("heads.prototypes", "fit_ridge_prototypes", "Z, y, *, num_classes, lam"),
    ("heads.prototypes", "predict_nearest_prototype", "Z, mus"),
    ("heads.prototypes", "prototypes_sensitivity_l2", "*, r, n_min, n_total, lam"),
    ("heads.logreg_torch", "SoftmaxLogReg", "d_in, num_classes"),
    (
        "heads.logreg_torch",
        "train_softmax_logreg_torch",
        "Ztr, ytr, Zva, yva, *, cfg",
    ),
    ("heads.logreg_torch", "predict_softmax_logreg_torch", "model, Z"),
    ("heads.sqhinge_torch", "SquaredHingeSVM", "d_in"),
    (
        "heads.sqhinge_torch",
        "train_squared_hinge_svm_torch",
        "Ztr, ytr, Zva, yva, *, cfg",
    ),
    ("heads.sqhinge_torch", "predict_squared_hinge_svm_torch", "model, Z"),
    ("heads.sqhinge_torch", "pack_squared_hinge_params", "model"),
    ("heads.sqhinge_eqx", "SquaredHingeSVMEqx", "d_in, *, key, init_scale=1e-2"),
    (
        "heads.sqhinge_eqx",
        "squared_hinge_objective",
        "model, state, xb, yb, key, *, lam",
    ),
    ("heads.sqhinge_eqx", "predict_eqx_svm", "model, X"),
    ("heads.logreg_eqx", "LogisticRegressorEqx", "d_in, *, key, init_scale=1e-2"),
    ("heads.logreg_eqx", "logistic_objective", "model, state, xb, yb, key, *, lam"),
    (
        "heads.softmax_eqx",
        "SoftmaxLinearEqx",
        "d_in, n_classes, *, key, init_scale=1e-2",
    ),
    ("heads.softmax_eqx", "softmax_objective", "model, state, xb, yb, key, *, lam"),
    ("heads.prototypes_eqx", "RidgePrototypesEqx", "mus"),
    ("heads.prototypes_eqx", "fit_ridge_prototypes_eqx", "X, y, *, num_classes, lam"),
    ("rff", "sample_rff_rbf", "key, *, d_in, m, gamma=1.0, clip_omega_norm=None"),
    ("rff", "rff_transform", "X, omega, phase"),
    ("rff", "rff_feature_norm_bound", ""),
    ("rff", "spectral_norm_svd", "omega, *, safety=1e-6"),
    (
        "rff",
        "spectral_norm_power_iteration",
        "omega, *, key, num_iters=60, eps=1e-12",
    ),
    (
        "rff",
        "rff_lipschitz_bound",
        'omega, *, method="fro", clip_omega_norm=None, key=None, safety=1e-6',
    ),
    (
        "api",
        "embed_torch_dataloaders",
        f"*, train_loader, test_loader, encoder, {_EMBED}",
    ),
    ("api", "embed_torch_loader", f"*, loader, encoder, {_EMBED}"),
    (
        "api",
        "embed_torch_loader_aug_pairs",
        f"*, loader, encoder, augment_fn, {_EMBED}",
    ),
    ("api", "save_embeddings_npz", "bundle, path"),
    ("api", "load_embeddings_npz", "path"),
    (
        "api",
        "compute_radius_policy",
        "Ztr, ytr, *, percentiles=(10, 25, 50, 75, 90), nn_sample_per_class=400,"
        ' seed=0, B_mode="public", B_public=None, B_quantile=0.999,'
        " check_public_bound=True, bound_tol=1e-3",
    ),
    (
        "api",
        "dp_release_erm_params_gaussian",
        f'params, *, {_RELEASE}, sigma_method="classic", rng=None',
    ),
    (
        "api",
        "dp_release_from_flat_params",
        f'theta_hat, unflatten, *, {_RELEASE}, sigma_method="analytic", rng=None',
    ),
    (
        "api",
        "dp_release_ridge_prototypes_gaussian",
        'mus, counts, *, r, lam, eps, delta, sigma_method="classic", rng=None',
    ),
    ("api", "eqx_flatten_adapter", "model"),
    ("api", "torch_flatten_adapter", "model"),
    (
        "api",
        "dp_release_eqx_model_gaussian",
        f'model, *, {_RELEASE}, sigma_method="analytic", rng=None',
    ),
    (
        "api",
        "dp_release_torch_model_gaussian",
        f'model, *, {_RELEASE}, sigma_method="analytic", rng=None',
    ),
    ("attacks.audit", "gaussian_llr", "y, mu0, mu1, sigma"),
    ("attacks.audit", "llr_attack_predict", "y, mu0, mu1, sigma"),
    ("attacks.audit", "gaussian_expected_llr_attack_acc", "mu0, mu1, sigma"),
    ("attacks.audit", "gaussian_dp_slack_closed_form", "mu0, mu1, sigma, eps"),
    (
        "attacks.audit",
        "gaussian_expected_llr_attack_acc_from_distance",
        "d, sigma",
    ),
    (
        "attacks.audit",
        "gaussian_dp_slack_from_distance_closed_form",
        "d, sigma, eps",
    ),
    (
        "attacks.audit",
        "run_llr_audit_trials",
        "*, f, make_neighbor, D, sigma, eps, n_trials=2000, seed=0",
    ),
    ("attacks.audit", "aggregate_closed_form_gaussian_audit", "dists, *, sigma, eps"),
    ("utils.seeding", "set_global_seed", "seed, *, deterministic_torch=False"),
    ("utils.io", "ensure_dir", "path"),
    ("utils.io", "write_json", "path, obj, *, indent=2"),
    ("utils.io", "read_json", "path"),
    ("utils.io", "write_csv_rows", "path, rows, *, fieldnames"),
    (
        "utils.plotting",
        "save_errorbar_plot",
        "x, curves, *, title, xlabel, ylabel, out_path, xscale_log=True",
    ),
    (
        "utils.plotting",
        "save_line_plot",
        "x, y, *, title, xlabel, ylabel, out_path",
    ),
    ("utils.torch_utils", "to_numpy", "x"),
    ("utils.torch_utils", "get_device", "device"),
]

_TRAIN = (
    'regularize_bias=True, optimizer="lbfgs", lbfgs_lr=1.0, lbfgs_max_iter=500,'
    ' lr=1e-2, epochs=50, batch_size=2048, device="cuda", seed=0'
)

DATACLASSES = [
    ("adjacency", "BallAdjacency", "dist, r"),
    ("radius", "WithinClassNNPairs", "i, j, dist, cls"),
    ("sensitivity", "ERMSensitivity", "delta_l2, lz, r, lam, n"),
    ("api", "EmbeddingBundle", "Ztr, ytr, Zte, yte, meta"),
    (
        "api",
        "RadiusPolicy",
        "r_values, percentiles, nn_sample_per_class, B_mode, B_public, B_quantile, B,"
        " r_std, max_norm, bound_tol, bound_check_passed, nn_dists_summary",
    ),
    ("heads.logreg_torch", "LogRegTorchConfig", f"num_classes=10, lam=1e-2, {_TRAIN}"),
    ("heads.sqhinge_torch", "SquaredHingeTorchConfig", f"lam=1e-2, {_TRAIN}"),
    (
        "attacks.audit",
        "LLRAuditResult",
        "attack_acc, llr_mean_under_D, llr_std_under_D, llr_mean_under_Dprime,"
        " llr_std_under_Dprime, p_L_gt_eps_under_D, p_L_gt_eps_under_Dprime,"
        " delta_hat_D_to_Dprime, p_L_lt_minus_eps_under_D,"
        " p_L_lt_minus_eps_under_Dprime, delta_hat_Dprime_to_D, n_trials, n_D,"
        " n_Dprime",
    ),
]
