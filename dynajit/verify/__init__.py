"""Comparing what a backend made of a graph with eager and with a float64 reference, while the program runs.

In:  a torch-level graph and what the backend made of it. Out: a callable that does the same and raises `AccuracyError`
     where the results are further from the reference than rounding explains.
One more thing compared: a method of `VerifiedGraph`.
"""

from dynajit.verify.closeness import Difference, difference
from dynajit.verify.graph import VerifiedGraph, check_graph, copies, random_gradients

__all__ = ["Difference", "VerifiedGraph", "check_graph", "copies", "difference", "random_gradients"]
