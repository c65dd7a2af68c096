"""The faults that `make mutants` plants have their places in the code of today."""

from __future__ import annotations

from tests.mutants.faults import FAULTS
from tests.support.stacks import ROOT


def test_each_fault_has_its_place_and_its_tests_in_the_tree() -> None:
    assert len({fault.promise for fault in FAULTS}) == len(FAULTS) >= 40
    for fault in FAULTS:
        planted = fault.planted(ROOT)
        if fault.file.endswith(".py"):
            compile(planted, fault.file, "exec")
