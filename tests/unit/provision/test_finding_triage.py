"""What provisioning does about the doctor's findings."""

from __future__ import annotations

from deploy_kit.doctor.model import Finding, Verdict, report
from deploy_kit.provision.triage import sort_findings

ACS = Finding(
    "acs.redirect", Verdict.FAIL, "ACS redirects", "clear it", ansible="pcie_disable_acs, kernel_iommu"
)
GONE = Finding("gpu.gone", Verdict.FAIL, "a card is gone", "look for it")
GOVERNOR = Finding("cpu.governor", Verdict.WARN, "slow", ansible="cpu_governor")
FINE = Finding("gpu", Verdict.OK, "8 GPUs")


def test_a_fault_stops_unless_a_role_puts_it_right_or_a_person_accepts_it() -> None:
    all_of_them = report([ACS, GONE, GOVERNOR, FINE], {})
    sorted_ = sort_findings(all_of_them, {"kernel_iommu"})
    assert (sorted_.stop, sorted_.fix, sorted_.show) == ((GONE,), (ACS,), (GOVERNOR,))
    switched_off = sort_findings(all_of_them, set(), {"gpu.gone"})
    assert (switched_off.stop, switched_off.show) == ((ACS,), (GONE, GOVERNOR))
    assert "→ pcie_disable_acs" in sorted_.as_dict()["fix"][0]


def test_warnings_and_the_unknown_never_stop() -> None:
    unknown = Finding("iommu.unknown", Verdict.UNKNOWN, "not read")
    assert sort_findings(report([unknown, GOVERNOR], {}), set()).stop == ()
