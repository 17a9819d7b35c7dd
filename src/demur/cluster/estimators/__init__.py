"""Private k-means, Gaussian and Student-t mixtures in scikit-learn's conventions.

The server has local reports alone, and everything here is computed from them. `fit(X)`
does both parts: it perturbs X (at a cost), then clusters the reports. `predict`,
`score`, `compute_sse` and the like are computed from the rows they are given: if those
are raw data, the results are not private.
"""

from demur.cluster.estimators.central_kmeans import CentralKMeans as CentralKMeans
from demur.cluster.estimators.gmm import PrivateGMM as PrivateGMM
from demur.cluster.estimators.kmeans import PrivateKMeans as PrivateKMeans
from demur.cluster.estimators.tmm import PrivateTMM as PrivateTMM
