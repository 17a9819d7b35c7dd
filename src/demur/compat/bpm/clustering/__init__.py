"""The seed's `clustering` package."""

from demur.compat.bpm.clustering.kmeans import PrivateKMeans as PrivateKMeans
