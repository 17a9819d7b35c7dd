"""Small helpers of the examples."""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.compat.ball_dp.utils.io import ensure_dir as ensure_dir
    from demur.compat.ball_dp.utils.io import read_json as read_json
    from demur.compat.ball_dp.utils.io import write_csv_rows as write_csv_rows
    from demur.compat.ball_dp.utils.io import write_json as write_json
    from demur.compat.ball_dp.utils.plotting import (
        save_errorbar_plot as save_errorbar_plot,
    )
    from demur.compat.ball_dp.utils.plotting import save_line_plot as save_line_plot
    from demur.compat.ball_dp.utils.seeding import set_global_seed as set_global_seed

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
