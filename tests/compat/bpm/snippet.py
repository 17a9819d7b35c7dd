"""The Python block of the seed's README, word for word."""

BASIC = """
import numpy as np
from sklearn.datasets import make_blobs
from clustering import PrivateKMeans

# Generate data
X, _ = make_blobs(n_samples=300, n_features=2, centers=3, random_state=42)

# Normalize to [0,1]^d (required by BPM)
X_normalized = (X - X.min(axis=0)) / (X.max(axis=0) - X.min(axis=0))

# Run private K-means
kmeans = PrivateKMeans(
    n_clusters=3,
    epsilon=2.0,  # Privacy budget
    L=0.3,        # Threshold distance
    random_state=42
)
kmeans.fit(X_normalized)

# Compute SSE
sse = kmeans.compute_sse(X_normalized)
print(f"SSE: {sse:.4f}")
"""
