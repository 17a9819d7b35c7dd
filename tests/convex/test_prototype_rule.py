"""The rule for noisy prototypes: Bayes in its model, and never won by noise."""

import math

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import norm

from demur.convex import BallPrototypeClassifier
from demur.convex.heads import prototype_rule
from demur.convex.heads.prototype_rule import (
    PrototypeRule,
    _Centred,
    effective_dimension,
)
from tests.convex.kit import blobs


def nearest(prototypes, X):
    return ((X[:, None] - prototypes) ** 2).sum(axis=2).argmin(axis=1)


def without_correction(prototypes, sigma, X):
    """A rule that was the default once without `debias`: distances as drawn."""
    return nearest(prototypes, X)


def one_length(prototypes, sigma, X):
    """The rule with `debias`: known noise taken off the lengths, nothing weighed."""
    precision = 1.0 / sigma**2
    centre = precision @ prototypes / precision.sum()
    away = prototypes - centre
    variance = np.maximum(sigma**2 - 1.0 / precision.sum(), 0.0)
    squares = (away**2).sum(axis=1) - prototypes.shape[1] * variance
    level = max(float(np.average(squares, weights=1.0 / (variance**2 + 1e-12))), 0.0)
    return (2.0 * (X - centre) @ away.T - level).argmax(axis=1)


# -- the Bayes rule -------------------------------------------------------------------


def known_rule(squares, variances, prior, d):
    """The rule with every number given, around the centre 0."""
    K = len(squares)
    return PrototypeRule(
        centre=np.zeros(d),
        directions=np.eye(K, d) * np.sqrt(squares)[:, None],
        offsets=squares,
        squares=squares,
        variances=variances,
        level=0.0,
        centre_variance=0.0,
        log_prior=np.log(prior),
    )


def brute_force(squares, variances, prior, x, *, noise=True):
    """P(y | evidence) from the densities of all the noisy evidence, class by class."""
    length = float(x @ x)
    omega2 = length / effective_dimension(len(x))
    evidence = 2.0 * x[: len(squares)] * np.sqrt(squares) - squares
    width = 4.0 * omega2 * squares + (4.0 * variances * length if noise else 0.0)
    likelihood = []
    for y in range(len(squares)):
        mean = np.where(np.arange(len(squares)) == y, squares, -squares)
        likelihood.append(norm.logpdf(evidence, mean, np.sqrt(width)).sum())
    return softmax(np.log(prior) + likelihood)


def test_the_softmax_of_the_scores_is_the_posterior():
    rng = np.random.default_rng(0)
    squares, prior = rng.uniform(0.2, 1.0, 4), rng.dirichlet(np.ones(4))
    variances = np.array([0.001, 0.01, 0.1, 3.0])
    rule = known_rule(squares, variances, prior, 6)
    for x in rng.normal(size=(20, 6)) + 1.0:
        assert x @ x > 1.0  # shorter rows bound the squares of the classes
        posterior = softmax(rule(x[None])[0])
        assert posterior == pytest.approx(brute_force(squares, variances, prior, x))
        # Twin: evidence weighed as if it had no noise is another distribution.
        twin = brute_force(squares, variances, prior, x, noise=False)
        assert np.abs(posterior - twin).max() > 1e-3


def test_no_other_weights_of_the_evidence_err_less_often():
    """In the model of the proof, errors are counted over many rows and draws."""
    rng = np.random.default_rng(1)
    K, d = 4, 40
    squares, prior = np.full(K, 1.0), np.array([0.4, 0.3, 0.2, 0.1])
    sigma = np.array([0.02, 0.05, 0.15, 0.6])
    means = np.eye(K, d)
    omega = math.sqrt(1.0 / effective_dimension(d))
    errors = np.zeros(4)
    for _ in range(200):
        y = rng.choice(K, size=200, p=prior)
        X = means[y] + omega * rng.normal(size=(200, d))
        noisy = means + sigma[:, None] * rng.normal(size=means.shape)
        evidence = 2.0 * X @ noisy.T - squares
        length = (X**2).sum(axis=1)[:, None]
        width = 4.0 * omega**2 * squares + 4.0 * sigma**2 * length
        scores = [
            np.log(prior) + 2.0 * squares * evidence / width,
            np.log(prior) + evidence / (2.0 * omega**2),
            2.0 * squares * evidence / width,
            evidence,
        ]
        errors += [(s.argmax(axis=1) != y).mean() for s in scores]
    assert errors[0] == errors.min()
    assert errors[1:].min() > 1.05 * errors[0]


# -- its numbers ----------------------------------------------------------------------


def test_the_noisy_evidence_has_no_bias():
    """Over draws of the noise its mean is the exact evidence around the true centre."""
    rng = np.random.default_rng(2)
    K, d, draws = 3, 5, 3_000
    means, x = rng.normal(size=(K, d)), rng.normal(size=d)
    sigma, weights = np.array([0.5, 1.0, 2.0]), np.array([3.0, 2.0, 1.0])
    shares = weights / weights.sum()
    centre = shares @ means
    exact = 2.0 * (means - centre) @ (x - centre) - ((means - centre) ** 2).sum(axis=1)
    drawn, uncorrected = [], []
    for z in rng.normal(size=(draws, K, d)):
        c = _Centred.of(means + sigma[:, None] * z, sigma, weights)
        linear = 2.0 * c.away @ (x - c.centre)
        drawn.append(linear + 2.0 * d * c.shared - c.estimates)
        uncorrected.append(linear - c.estimates)
    error = np.std(drawn, axis=0) / math.sqrt(draws)
    assert (np.abs(np.mean(drawn, axis=0) - exact) < 4.5 * error).all()
    # Twin: without what p_c and the centre share.
    assert (np.abs(np.mean(uncorrected, axis=0) - exact) > 10.0 * error).any()


def test_the_noise_of_the_evidence_has_that_of_the_centre_in_it():
    """Over draws its variance is 4 v_c |x - m'|^2 + 4 sigma_m^2 M_c, class by class."""
    rng = np.random.default_rng(7)
    K, d, draws = 4, 40, 2_000
    means, x = 0.3 * rng.normal(size=(K, d)), 0.3 * rng.normal(size=d)
    sigma = np.array([0.3, 0.5, 1.0, 3.0])
    weights = 1.0 / (0.09 + sigma**2)
    centre = weights / weights.sum() @ means
    squares = ((means - centre) ** 2).sum(axis=1)
    exact = 2.0 * (means - centre) @ (x - centre)
    drawn, lengths = [], []
    for z in rng.normal(size=(draws, K, d)):
        c = _Centred.of(means + sigma[:, None] * z, sigma, weights)
        drawn.append(2.0 * c.away @ (x - c.centre) + 2.0 * d * c.shared - exact)
        lengths.append(((x - c.centre) ** 2).sum())
    seen = np.var(drawn, axis=0)
    stated = 4.0 * (c.variance * np.mean(lengths) + c.centre_variance * squares)
    # The one approximation: the noises of p_c - m' and of m' are not quite independent.
    assert seen == pytest.approx(stated, rel=0.25)
    # Twin: the length of the row around the true centre.
    twin = 4.0 * c.variance * ((x - centre) ** 2).sum()
    assert (seen > 1.5 * twin).all()


def test_sums_of_all_others_survive_weights_of_any_size():
    found = prototype_rule._sum_of_others(np.array([1.0, 1e-30, 1e-20]))
    assert found == pytest.approx([1e-20, 1.0, 1.0], rel=1e-9)


# -- its limits -----------------------------------------------------------------------


def test_without_noise_it_is_the_nearest_prototype():
    rng = np.random.default_rng(3)
    prototypes, X = rng.normal(size=(5, 4)), rng.normal(size=(200, 4))
    rule = PrototypeRule.of(prototypes, np.full(5, 1e-9), np.full(5, 0.2))
    assert (rule(X).argmax(axis=1) == nearest(prototypes, X)).all()


@pytest.mark.parametrize("prior", [0.001, 0.1])
def test_a_class_that_noise_drowns_cannot_win_at_random(prior):
    """One class with a hundred times the noise, rows of the other classes alone."""
    rng = np.random.default_rng(4)
    K, d = 5, 100
    means = 0.5 * np.eye(K, d)
    sigma = np.array([3.0, 0.01, 0.01, 0.01, 0.01])
    weights = np.array([prior, *np.full(4, (1.0 - prior) / 4.0)])
    y = rng.integers(1, K, size=300)
    X = means[y] + 0.05 * rng.normal(size=(300, d))
    wins, twins = 0.0, 0.0
    for _ in range(30):
        noisy = means + sigma[:, None] * rng.normal(size=means.shape)
        scores = PrototypeRule.of(noisy, sigma, weights)(X)
        wins += float((scores.argmax(axis=1) == 0).mean()) / 30
        twins += float((one_length(noisy, sigma, X) == 0).mean()) / 30
        assert np.abs(scores[:, 0] - np.log(prior)).max() < 1.0
    assert wins < 0.01 and twins > 0.2


def forgetting_the_centre(rule, X):
    """The rule as it was: a centre without noise, and a level without a bound."""
    away = X - rule.centre
    noise = X.shape[1] * rule.centre_variance
    lengths = prototype_rule._less((away**2).sum(axis=1), noise)[:, None]
    spread = prototype_rule._less(lengths, rule.level) / effective_dimension(X.shape[1])
    evidence = 2.0 * away @ rule.directions.T - rule.offsets
    width = spread + lengths * rule.variances / rule.squares
    return rule.log_prior + evidence / (2.0 * width)


@pytest.mark.parametrize("d", [80, 384])
def test_where_noise_drowns_all_classes_the_largest_wins(d):
    """Sizes in a series down to 1/100 and few records: the counts say most."""
    rng = np.random.default_rng(8)
    K = 6
    counts = np.ceil(40.0 * 100.0 ** -(np.arange(K) / (K - 1)))
    means = rng.normal(size=(K, d))
    means *= 0.5 / np.linalg.norm(means, axis=1, keepdims=True)
    spectrum = 1.0 / np.arange(1, d + 1)
    y = np.repeat(np.arange(K), (10 * counts).astype(int))
    X = means[y] + 0.5 * np.sqrt(spectrum / spectrum.sum()) * rng.normal(
        size=(len(y), d)
    )
    sigma, prior = 6.0 / counts, counts / counts.sum()
    right = []
    for _ in range(30):
        noisy = means + sigma[:, None] * rng.normal(size=means.shape)
        rule = PrototypeRule.of(noisy, sigma, prior, 1.0)
        free = PrototypeRule.of(noisy, sigma, prior)
        scores = (rule(X), forgetting_the_centre(free, X))
        right.append([(one.argmax(axis=1) == y).mean() for one in scores])
    ours, twin = np.mean(right, axis=0)
    assert ours > prior[0] - 0.01 and twin < prior[0] - 0.05


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("ratio", [1.0, 1e8])
def test_scores_survive_few_classes_and_much_noise(classes, ratio):
    rng = np.random.default_rng(5)
    sigma = 50.0 * np.geomspace(1.0, ratio, classes)
    noisy = sigma[:, None] * rng.normal(size=(classes, 3))
    prior = np.full(classes, 1.0 / classes)
    for prototypes in (noisy, np.zeros((classes, 3))):
        rule = PrototypeRule.of(prototypes, sigma, prior)
        rows = np.vstack([rng.normal(size=(10, 3)), rule.centre[None]])
        assert np.isfinite(rule(rows)).all()


@pytest.mark.slow
@pytest.mark.parametrize("imbalance", [1.0, 14.0, 100.0])
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_no_worse_than_the_better_of_two_simpler_rules(imbalance, epsilon):
    """A mixture whose first class is smaller; means over paired draws of the noise."""
    rng = np.random.default_rng(6)
    K, d, n = 5, 100, 600
    means = rng.normal(size=(K, d))
    means *= 0.4 / np.linalg.norm(means, axis=1, keepdims=True)
    spectrum = 1.0 / np.arange(1, d + 1)
    deviations = 0.6 * np.sqrt(spectrum / spectrum.sum())
    counts = np.array([round(n / imbalance), n, n, n, n])
    y = np.repeat(np.arange(K), counts)
    X = means[y] + deviations * rng.normal(size=(len(y), d))
    sigma = 0.4 / counts / {0.5: 0.1241, 4.0: 0.8379}[epsilon]
    right = []
    for _ in range(20):
        noisy = means + sigma[:, None] * rng.normal(size=means.shape)
        scores = PrototypeRule.of(noisy, sigma, counts / counts.sum())(X)
        right.append(
            [
                (scores.argmax(axis=1) == y).mean(),
                (without_correction(noisy, sigma, X) == y).mean(),
                (one_length(noisy, sigma, X) == y).mean(),
            ]
        )
    ours, *others = np.mean(right, axis=0)
    assert ours > max(others) - 0.01
    if imbalance > 1.0 and epsilon < 1.0:
        assert ours > min(others) + 0.03  # each of the two loses somewhere


# -- in the classifier ----------------------------------------------------------------


def test_probabilities_and_predictions_are_of_one_rule():
    X, y = blobs(600, 4, 3)
    head = BallPrototypeClassifier(epsilon=2.0, radius=0.2).fit(X, y)
    p = head.predict_proba(X)
    assert np.allclose(p.sum(axis=1), 1.0) and p.min() >= 0.0
    assert (head.classes_[p.argmax(axis=1)] == head.predict(X)).all()
    two = BallPrototypeClassifier(epsilon=2.0, radius=0.2).fit(X[y < 2], y[y < 2])
    odds = np.log(two.predict_proba(X)[:, 1] / two.predict_proba(X)[:, 0])
    assert odds == pytest.approx(two.decision_function(X), abs=1e-6)


def test_the_prior_is_that_of_the_counts_unless_it_is_given():
    X, y = blobs(300, 4, 3)
    keep = (y > 0) | (np.arange(300) < 30)
    X, y = X[keep], y[keep]
    counts = np.bincount(y)
    head = BallPrototypeClassifier(radius=0.2).fit(X, y)
    assert head.class_prior_ == pytest.approx(counts / counts.sum())
    head = BallPrototypeClassifier(radius=0.2, prior="uniform").fit(X, y)
    assert head.class_prior_ == pytest.approx([1 / 3] * 3)
    head = BallPrototypeClassifier(radius=0.2, prior=[1, 1, 2]).fit(X, y)
    assert head.class_prior_ == pytest.approx([0.25, 0.25, 0.5])
    for bad in ("records", [1.0, 2.0], [1.0, 0.0, 1.0], [1.0, np.nan, 1.0]):
        with pytest.raises(ValueError, match="prior must") as refused:
            BallPrototypeClassifier(radius=0.2, prior=bad).fit(X, y)
        assert "othing was" in str(refused.value)
