"""Contract tests for plug-in authors, tiny problems, faults, and simulated runs.

from shoal.testing import check_strategy
check_strategy(MyStrategy)          # the whole test of a strategy
"""

from shoal.testing.laws import LAWS, Law, check_strategy, strategy_laws
from shoal.testing.problems import LeastSquares
from shoal.testing.simulation import Outcome, lookahead_step, simulate
from shoal.training.conditions import Conditions

__all__ = [
    "LAWS",
    "Conditions",
    "Law",
    "LeastSquares",
    "Outcome",
    "check_strategy",
    "lookahead_step",
    "simulate",
    "strategy_laws",
]
