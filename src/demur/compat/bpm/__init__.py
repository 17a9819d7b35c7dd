"""The interface of the original `bpm` and `clustering`, over demur's mechanism.

Change the import lines and keep the code: `bpm` becomes `demur.compat.bpm`, and
`clustering` becomes `demur.compat.bpm.clustering`. The names are the original's, the
numbers are the right ones; `docs/compat_bpm.md` says what differs and why.
"""

from demur.compat.bpm.mechanism import BPM as BPM
from demur.compat.bpm.mechanism import compute_lambda_L as compute_lambda_L
from demur.compat.bpm.mechanism import compute_mu_L as compute_mu_L
from demur.compat.bpm.mechanism import compute_p_L as compute_p_L
from demur.compat.bpm.sampling import bpm_sampling as bpm_sampling
from demur.compat.bpm.sampling import sample_f1 as sample_f1
from demur.compat.bpm.sampling import sample_f2 as sample_f2
