"""Makes v1.state and v1.npz: `cd tests && python golden/state/make.py`.

Only ever run again for a new version of the format, under new names: old files stay as they are.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from test_state import steps, taken_in
from toy import CAUSAL, model

here = Path(__file__).parent
m = model(CAUSAL["finite_hybrid"])
state = taken_in(m, [40, 1, 1, 1])
state.save(here / "v1.state")
np.savez_compressed(here / "v1.npz", logits=steps(m, state, 20))
