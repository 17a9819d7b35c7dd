"""The code blocks of the memory_pair design document, word for word.

The tests change `memory_pair.src` to `demur.compat.memory_pair.src` in the import
lines, and nothing else.
"""

PHASE = r"""
from enum import Enum

class Phase(Enum):
    CALIBRATION = 1
    LEARNING    = 2
    INTERLEAVING = 3
"""

CALIBRATOR = r"""
class Calibrator:
    def __init__(self, quantile: float = 1.0):
        self.grad_norms = []
        self.thetas = []
        self.quantile = quantile  # e.g. 0.95 to clip outliers
        self.c_hat = None
        self.C_hat = None

    def observe(self, grad: np.ndarray, theta: np.ndarray):
        self.grad_norms.append(np.linalg.norm(grad))
        self.thetas.append(theta.copy())

    def estimate_bounds(self, model) -> tuple[float, float]:
        # try model.lbfgs_bounds() or eigenvalues of B
        ...
        return c_hat, C_hat

    def finalize(self, gamma: float, model) -> dict:
        G_hat = float(np.quantile(self.grad_norms, self.quantile))
        D_hat = float(max(np.linalg.norm(th - self.thetas[0]) for th in self.thetas))
        self.c_hat, self.C_hat = self.estimate_bounds(model)
        N_star = int(np.ceil(((G_hat * D_hat * np.sqrt(self.c_hat * self.C_hat)) / gamma) ** 2))
        return {
            "G": G_hat,
            "D": D_hat,
            "c": self.c_hat,
            "C": self.C_hat,
            "N_star": max(1, N_star),
        }
"""  # noqa: E501

MEMORY_PAIR = r"""
class MemoryPair:
    def __init__(self, dim, odometer, calibrator=None):
        self.theta = np.zeros(dim)
        self.lbfgs = ...
        self.phase = Phase.CALIBRATION
        self.calibrator = calibrator or Calibrator()
        self.odometer = odometer
        self.N_star = None
        self.ready_to_predict = False
        self.events_seen = 0
        self.inserts_seen = 0

    def calibrate_step(self, x, y):
        pred = float(self.theta @ x)
        grad_old = (pred - y) * x
        direction = self.lbfgs.direction(grad_old)
        # update theta, lbfgs as usual
        ...
        self.calibrator.observe(grad_old, self.theta)
        self.events_seen += 1
        self.inserts_seen += 1
        return pred

    def finalize_calibration(self, gamma):
        stats = self.calibrator.finalize(gamma, self)
        self.N_star = stats["N_star"]
        # finalizes odometer with stats (G, D, etc.)
        self.odometer.finalize_with(stats, T_estimate=self.N_star)  # or max_events
        self.phase = Phase.LEARNING

    def insert(self, x, y):
        pred = float(self.theta @ x)
        # update regret, theta, lbfgs
        ...
        self.events_seen += 1
        self.inserts_seen += 1
        if self.phase == Phase.LEARNING and self.inserts_seen >= self.N_star:
            self.ready_to_predict = True
            self.phase = Phase.INTERLEAVING
        return pred

    def delete(self, x, y):
        if not self.odometer.ready_to_delete:
            raise RuntimeError("Odometer not finalized or capacity depleted.")
        self.odometer.spend()
        # compute influence d, add noise N(0, σ²I)
        sigma = self.odometer.noise_scale()
        ...

    @property
    def can_predict(self) -> bool:
        return self.ready_to_predict
"""

ODOMETER = r"""
class PrivacyOdometer:
    def __init__(self, eps_total, delta_total, lambda_, delta_B=0.05, T=100000, gamma=0.05):
        ...
        self.ready_to_delete = False

    def finalize_with(self, stats: dict, T_estimate: int):
        self.L = stats["G"]
        self.D = stats["D"]
        self.c = stats["c"]
        self.C = stats["C"]
        self.T = T_estimate  # or max_events
        m = self._solve_capacity()
        self.deletion_capacity = max(1, m)
        self.eps_step = self.eps_total / self.deletion_capacity
        self.delta_step = self.delta_total / self.deletion_capacity
        self.sigma_step = (self.L / self.lambda_) * np.sqrt(2*np.log(1.25/self.delta_step)) / self.eps_step
        self.ready_to_delete = True

    def _solve_capacity(self) -> int:
        def regret_bound(m):
            R_ins = self.L * self.D * np.sqrt(self.c * self.C * self.T)
            R_del = (m * self.L / self.lambda_) * np.sqrt(
                (2*np.log(1.25*max(m,1)/self.delta_total) / self.eps_total) * (2*np.log(1/self.delta_B))
            )
            return (R_ins + R_del) / self.T
        if regret_bound(1) > self.gamma:
            return 0
        lo, hi = 1, self.T
        while lo < hi:
            mid = (lo + hi + 1)//2
            if regret_bound(mid) <= self.gamma:
                lo = mid
            else:
                hi = mid - 1
        return lo
"""  # noqa: E501

WORKFLOW = r"""
from memory_pair.src.calibrator import Calibrator
calibrator = Calibrator(quantile=0.95, D_cap=10.0)
model = MemoryPair(dim=d, odometer=odometer, calibrator=calibrator)

"""
