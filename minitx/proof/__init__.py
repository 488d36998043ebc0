"""Proof that every backward is right: gradient checks for anyone's op, cases, twins, stored values, planted faults."""
from minitx.proof.differences import GradientError
from minitx.proof.gradcheck import Directional, Report, directional, gradcheck
from minitx.proof.opcheck import check_op

__all__ = ["Directional", "GradientError", "Report", "check_op", "directional", "gradcheck"]
