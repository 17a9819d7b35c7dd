"""Private k-means, Gaussian and Student-t mixtures in scikit-learn's conventions.

A server sees reports; everything here is computed from them. `fit(X)` plays both roles:
it perturbs X (at a price), then clusters the reports. `predict`, `score`, `compute_sse`
and their like answer about the rows they are given: where those are raw data, so are
the answers, and nothing makes them private.
"""

from demur.cluster.estimators.gmm import PrivateGMM as PrivateGMM
from demur.cluster.estimators.kmeans import PrivateKMeans as PrivateKMeans
from demur.cluster.estimators.tmm import PrivateTMM as PrivateTMM
